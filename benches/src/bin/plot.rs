//! Plots the results of `benches/peers --json`: loss and CPU time by rate, one line per tool.
//!
//!     benches/peers --json | cargo run --package wqcap-benches --bin plot -- peers.svg

use plotters::prelude::*;
use serde::Deserialize;
use std::{collections::BTreeMap, error::Error, io, path::PathBuf, process::ExitCode};

#[derive(Deserialize)]
struct Report {
    /// Frame size in bytes.
    frame: u32,
    results: Vec<Point>,
}

/// Result of one run of a tool at one rate.
#[derive(Clone, Deserialize)]
struct Point {
    tool: String,
    /// Requested rate in frames per second; 0: as fast as possible.
    rate: f64,
    sent: f64,
    loss: f64,
    cpu_ns_per_frame: f64,
}

type Outcome<T = ()> = Result<T, Box<dyn Error>>;
/// Points of each tool by name: rate in frames per second, median loss in percent, and median CPU time
/// per frame in microseconds.
type Lines = BTreeMap<String, Vec<(f64, f64, f64)>>;

const SIZE: (u32, u32) = (960, 720);

fn main() -> ExitCode {
    let Some(path) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: plot FILE.svg, with the JSON of benches/peers on standard input");
        return ExitCode::from(2);
    };
    match run(&path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("plot: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(path: &PathBuf) -> Outcome {
    let report: Report = serde_json::from_reader(io::stdin().lock())?;
    let lines = lines(&report.results);
    let canvas = SVGBackend::new(path, SIZE).into_drawing_area();
    canvas.fill(&WHITE)?;
    let title = format!("frames of {} bytes over veth", report.frame);
    let canvas = canvas.titled(&title, ("sans-serif", 20))?;
    let (upper, lower) = canvas.split_vertically(SIZE.1 / 2);
    draw(&upper, "lost, %", &lines, |it| it.1)?;
    draw(&lower, "CPU time per frame, us", &lines, |it| it.2)?;
    canvas.present()?;
    Ok(())
}

/// Computes the medians over the repeats. For a requested rate of 0 the rate is that of the frames sent.
fn lines(points: &[Point]) -> Lines {
    let mut by: BTreeMap<(String, u64), Vec<Point>> = BTreeMap::new();
    for it in points {
        let key = (it.tool.clone(), it.rate as u64);
        by.entry(key).or_default().push(it.clone());
    }
    let most = points.iter().map(|it| it.rate).fold(0.0, f64::max);
    // The sending time is the same for every rate.
    let seconds = points
        .iter()
        .find(|it| it.rate > 0.0)
        .map_or(1.0, |it| it.sent / it.rate);
    let mut lines = Lines::new();
    for ((tool, rate), points) in by {
        let median = |of: fn(&Point) -> f64| {
            let mut all: Vec<_> = points.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        let rate = match rate {
            0 => (median(|it| it.sent) / seconds).max(most),
            rate => rate as f64,
        };
        let point = (
            rate,
            median(|it| it.loss) * 100.0,
            median(|it| it.cpu_ns_per_frame) / 1000.0,
        );
        lines.entry(tool).or_default().push(point);
    }
    for line in lines.values_mut() {
        line.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    lines
}

fn draw<B: DrawingBackend>(
    area: &DrawingArea<B, plotters::coord::Shift>,
    what: &str,
    lines: &Lines,
    of: fn(&(f64, f64, f64)) -> f64,
) -> Outcome
where
    B::ErrorType: 'static,
{
    let all = || lines.values().flatten();
    // With space for the legend on the right.
    let widest = all().map(|it| it.0).fold(1.0, f64::max) * 1.2;
    let highest = all().map(of).fold(0.1, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..widest, 0.0..highest)?;
    chart
        .configure_mesh()
        .x_desc("frames per second")
        .y_desc(what)
        .x_label_formatter(&|rate| format!("{:.0} k", rate / 1000.0))
        .draw()?;
    for (index, (tool, line)) in lines.iter().enumerate() {
        let colour = Palette99::pick(index).to_rgba();
        let points: Vec<_> = line.iter().map(|it| (it.0, of(it))).collect();
        let drawn = LineSeries::new(points, colour.stroke_width(2)).point_size(3);
        chart
            .draw_series(drawn)?
            .label(tool)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK)
        .draw()?;
    Ok(())
}
