//! A plot of how well a reader answers, over the tokens that it was asked with.

use anyhow::{Result, bail};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::{Arm, ReaderReport};

/// Width and height of a panel, in pixels.
const WIDTH: u32 = 480;
const HEIGHT: u32 = 360;
/// The measure that is plotted.
const MEASURE: &str = "f1";

/// An arm in a panel.
#[derive(Debug, Clone, Copy)]
struct Point {
    arm: Arm,
    tokens: f64,
    mean: f64,
    interval: [f64; 2],
}

/// Draws one panel per report as SVG: the mean F1 of each arm over its mean number of prompt tokens, with 95 % intervals. Arms that
/// select in the same way are joined by a line.
///
/// # Errors
/// Fails if the server counted no tokens, or if drawing fails.
pub fn svg(reports: &[ReaderReport]) -> Result<String> {
    let panels: Vec<(&ReaderReport, Vec<Point>)> =
        reports.iter().map(|report| (report, points(report))).collect();
    if let Some((report, _)) = panels.iter().find(|(_, points)| points.is_empty()) {
        bail!("cannot plot {}: there is no answer for which the server counted tokens", report.data);
    }
    let mut out = String::new();
    {
        let root =
            SVGBackend::with_string(&mut out, (WIDTH * panels.len() as u32, HEIGHT)).into_drawing_area();
        root.fill(&WHITE)?;
        for (area, (report, points)) in root.split_evenly((1, panels.len())).iter().zip(&panels) {
            draw(area, report, points)?;
        }
        root.present()?;
    }
    Ok(out)
}

fn points(report: &ReaderReport) -> Vec<Point> {
    let point = |(arm, of_arm): &(Arm, super::report::ArmReport)| {
        let (_, estimate, _) = of_arm.measures.iter().find(|(name, ..)| *name == MEASURE)?;
        let point =
            Point { arm: *arm, tokens: of_arm.tokens_in, mean: estimate.mean, interval: estimate.interval };
        (point.tokens.is_finite() && point.mean.is_finite()).then_some(point)
    };
    report.arms.iter().filter_map(point).collect()
}

fn draw(area: &DrawingArea<SVGBackend, Shift>, report: &ReaderReport, points: &[Point]) -> Result<()> {
    let ends = |value: fn(&Point) -> f64| points.iter().map(value).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{}: answers of {}", report.data, report.model), ("sans-serif", 15))
        .margin(8)
        .x_label_area_size(34)
        .y_label_area_size(44)
        .build_cartesian_2d(
            0.0..ends(|point| point.tokens) * 1.05,
            0.0..(ends(|point| point.interval[1]) * 1.05).max(0.1),
        )?;
    chart.configure_mesh().x_desc("prompt tokens").y_desc("F1").draw()?;
    for (index, name) in FAMILIES.into_iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        let mut own: Vec<Point> = points.iter().copied().filter(|point| family(point.arm) == index).collect();
        if own.is_empty() {
            continue;
        }
        own.sort_by(|a, b| a.tokens.total_cmp(&b.tokens));
        chart.draw_series(own.iter().map(|point| {
            let [low, high] = point.interval.map(|end| (point.tokens, end));
            PathElement::new([low, high], color.stroke_width(1))
        }))?;
        chart.draw_series(
            own.iter().map(|point| Circle::new((point.tokens, point.mean), 3, color.filled())),
        )?;
        let line = own.iter().map(|point| (point.tokens, point.mean));
        chart
            .draw_series(LineSeries::new(line, color.stroke_width(1)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 14, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .draw()?;
    Ok(())
}

/// The ways to select, as the plot names them.
const FAMILIES: [&str; 5] = ["Thresher", "complete chunks", "BM25 sentences", "all chunks", "no chunks"];

/// Returns the index of an arm's way to select.
fn family(arm: Arm) -> usize {
    match arm {
        Arm::Thresher(_) => 0,
        Arm::Chunks(_) => 1,
        Arm::Bm25(_) => 2,
        Arm::All => 3,
        Arm::Nothing => 4,
    }
}
