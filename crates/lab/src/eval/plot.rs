//! Quality against compression, one line per method and file, as SVG.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::report::{MethodReport, Report};

const WIDTH: u32 = 420;
const HEIGHT: u32 = 340;

/// One panel per report that has answers.
///
/// # Errors
/// When no report has answers, or the drawing library refuses.
pub fn svg(reports: &[Report]) -> Result<String> {
    let reports: Vec<_> =
        reports.iter().filter(|r| r.methods.iter().any(|(_, m)| !m.kept.is_empty())).collect();
    if reports.is_empty() {
        return Err(anyhow!("none of the files has answers, so there is no compression to plot"));
    }
    let mut out = String::new();
    {
        let root =
            SVGBackend::with_string(&mut out, (WIDTH * reports.len() as u32, HEIGHT)).into_drawing_area();
        root.fill(&WHITE)?;
        for (panel, report) in root.split_evenly((1, reports.len())).iter().zip(&reports) {
            draw(panel, report)?;
        }
        root.present()?;
    }
    Ok(out)
}

fn draw(panel: &DrawingArea<SVGBackend, plotters::coord::Shift>, report: &Report) -> Result<()> {
    let lowest =
        report.methods.iter().flat_map(|(_, m)| &m.kept).map(|(_, e)| e.interval[0]).fold(1.0, f64::min);
    let mut chart = ChartBuilder::on(panel)
        .caption(format!("{}: answers that survive", report.data), ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(44)
        .build_cartesian_2d(
            (3f64..18f64).log_scale().with_key_points(vec![4.0, 8.0, 16.0]),
            (lowest - 0.02).max(0.0)..1.0,
        )?;
    chart.configure_mesh().x_desc("compression").x_label_formatter(&|x| format!("{x:.0}×")).draw()?;
    for (index, (name, method)) in report.methods.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let width = if *name == report.default { 3 } else { 1 };
        chart
            .draw_series(LineSeries::new(points(method), color.stroke_width(width)))?
            .label(name.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], color.stroke_width(width)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
        .background_style(WHITE.mix(0.8))
        .draw()?;
    Ok(())
}

fn points(method: &MethodReport) -> impl Iterator<Item = (f64, f64)> {
    method.kept.iter().map(|&(ratio, estimate)| (f64::from(ratio), estimate.mean))
}
