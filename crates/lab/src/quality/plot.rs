//! Plots of what `eval` measured.

use anyhow::{Result, bail};
use plotters::coord::Shift;
use plotters::prelude::*;
use thresher_eval::Report;
use thresher_eval::estimate::wilson_proportion;
use thresher_eval::judged::{Bin, JudgedReport};
use thresher_eval::report::MethodReport;

/// Width and height of a panel, in pixels.
const WIDTH: u32 = 420;
const HEIGHT: u32 = 340;

/// Draws one panel per report as SVG: for questions with answers, the kept@N× metric against the compression
/// ratio, one line per method; for claims and answerable questions, a reliability diagram.
///
/// # Errors
/// Fails if no report has either or if drawing fails.
pub fn svg(reports: &[Report]) -> Result<String> {
    let has_answers = |report: &Report| report.methods.iter().any(|(_, method)| !method.kept.is_empty());
    let can_be_drawn = |report: &&Report| report.judged.is_some() || has_answers(report);
    let reports: Vec<&Report> = reports.iter().filter(can_be_drawn).collect();
    if reports.is_empty() {
        bail!("cannot plot: no data file has answers, claims or answerable questions");
    }
    draw(&reports)
}

fn draw(reports: &[&Report]) -> Result<String> {
    let mut out = String::new();
    {
        let root =
            SVGBackend::with_string(&mut out, (WIDTH * reports.len() as u32, HEIGHT)).into_drawing_area();
        root.fill(&WHITE)?;
        for (panel, report) in root.split_evenly((1, reports.len())).iter().zip(reports) {
            match &report.judged {
                Some(judged) => draw_reliability(panel, &report.data, judged)?,
                None => draw_kept(panel, report)?,
            }
        }
        root.present()?;
    }
    Ok(out)
}

/// Draws for each bin the share of true rows over the mean probability, with its 95 % interval. The diagonal is
/// perfect calibration.
fn draw_reliability(panel: &DrawingArea<SVGBackend, Shift>, data: &str, judged: &JudgedReport) -> Result<()> {
    let caption = format!("{data}: {}, calibration error {:.3}", judged.of, judged.calibration_error);
    let mut chart = ChartBuilder::on(panel)
        .caption(caption, ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(44)
        .build_cartesian_2d(0.0..1.0, 0.0..1.0)?;
    chart.configure_mesh().x_desc("probability").y_desc("share of true rows").draw()?;
    chart.draw_series(LineSeries::new([(0.0, 0.0), (1.0, 1.0)], BLACK.mix(0.3)))?;
    let color = Palette99::pick(0).to_rgba();
    let interval = |bin: &Bin| {
        let [low, high] = interval_of(bin);
        PathElement::new([(bin.value, low), (bin.value, high)], color.stroke_width(1))
    };
    chart.draw_series(judged.bins.iter().map(interval))?;
    let point = |bin: &Bin| Circle::new((bin.value, bin.share), 3, color.filled());
    chart.draw_series(judged.bins.iter().map(point))?;
    Ok(())
}

/// Returns the 95 % interval of the share of true rows.
fn interval_of(bin: &Bin) -> [f64; 2] {
    let positives = (bin.share * bin.rows as f64).round() as usize;
    let values: Vec<f64> = (0..bin.rows).map(|row| f64::from(u8::from(row < positives))).collect();
    wilson_proportion(&values).interval
}

fn draw_kept(panel: &DrawingArea<SVGBackend, Shift>, report: &Report) -> Result<()> {
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
