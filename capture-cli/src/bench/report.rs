//! Report of a benchmark: the machine, and results with their baselines.

use crate::{
    failure::Failure,
    term::{
        output,
        table::{aligned, scaled},
    },
};
use serde::Serialize;
use std::fs;

/// Report of a benchmark: the machine and the results.
#[derive(Debug, Serialize)]
pub struct BenchReport<R = Measured> {
    /// Machine on which the benchmark ran.
    pub machine: Machine,
    /// Results of the benchmark, a row each in the printed table.
    pub results: Vec<R>,
}

/// Result of a benchmark that has a row in the printed table.
pub trait ResultRow: Serialize {
    /// Column names of the printed table of benchmark results.
    const HEAD: &'static [&'static str];
    /// Returns the texts of the benchmark result's cells in the printed table.
    fn cells(&self) -> Vec<String>;
}

/// Machine on which a benchmark ran.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Name of the machine's processor; null if the system does not provide it.
    pub cpu: Option<String>,
    /// Number of CPUs that the process of the benchmark may use.
    pub cpus: usize,
    /// Release of the machine's kernel, as uname(2) returns it.
    pub kernel: String,
}

/// Measured time per frame of a benchmark, with its baseline.
#[derive(Debug, Serialize)]
pub struct Measured {
    /// Name of the benchmark result: `subject/what/size`.
    pub name: String,
    /// Median time per frame of the benchmark in nanoseconds.
    pub ns_per_frame: f64,
    /// Number of frames per second at the median time per frame.
    pub frames_per_s: f64,
    /// Name of the baseline with which the benchmark result is compared.
    pub baseline: &'static str,
    /// Ratio of `ns_per_frame` to the time of the baseline: the median over the repeats.
    pub ratio: f64,
    /// Lowest and highest ratio to the baseline among the repeats.
    pub spread: [f64; 2],
    /// Further facts about the benchmark result.
    #[serde(flatten)]
    pub more: serde_json::Map<String, serde_json::Value>,
}

impl Measured {
    /// Computes a benchmark result from pairs of times per frame in nanoseconds, of the subject and
    /// of its baseline.
    pub fn from_pairs(name: String, baseline: &'static str, pairs: &[(f64, f64)]) -> Self {
        let (ratio, spread) = compared(pairs);
        let ns_per_frame = median(pairs.iter().map(|(a, _)| *a).collect());
        Self {
            name,
            ns_per_frame,
            frames_per_s: 1e9 / ns_per_frame,
            baseline,
            ratio,
            spread,
            more: serde_json::Map::new(),
        }
    }

    /// Adds a value to the further facts of the benchmark result, under the key `name`.
    pub fn with(mut self, name: &str, value: impl Into<serde_json::Value>) -> Self {
        self.more.insert(name.into(), value.into());
        self
    }
}

impl ResultRow for Measured {
    const HEAD: &'static [&'static str] = &[
        "result", "ns/frame", "frames/s", "ratio", "spread", "against",
    ];

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.clone(),
            format!("{:.1}", self.ns_per_frame),
            scaled(self.frames_per_s),
            format!("{:.2}", self.ratio),
            format!("{:.2} to {:.2}", self.spread[0], self.spread[1]),
            self.baseline.to_owned(),
        ]
    }
}

/// Returns the median of the ratios of `pairs`, each a value and its baseline, and the lowest and
/// highest ratio.
pub fn compared(pairs: &[(f64, f64)]) -> (f64, [f64; 2]) {
    let ratios: Vec<f64> = pairs.iter().map(|(a, b)| a / b).collect();
    let spread = [
        ratios.iter().copied().fold(f64::INFINITY, f64::min),
        ratios.iter().copied().fold(0.0, f64::max),
    ];
    (median(ratios), spread)
}

/// Returns the median of `values`. For an even number of values it is the mean of the middle two.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

impl<R: ResultRow> BenchReport<R> {
    /// Creates a benchmark report with the facts of this machine.
    #[expect(clippy::disallowed_methods, reason = "a file of /proc")]
    pub fn new(results: Vec<R>) -> Self {
        let cpu = fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
            let line = text.lines().find(|line| line.starts_with("model name"))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        });
        Self {
            machine: Machine {
                cpu,
                cpus: std::thread::available_parallelism().map_or(1, usize::from),
                kernel: rustix::system::uname().release().to_string_lossy().into(),
            },
            results,
        }
    }

    /// Prints the benchmark report on stdout, as JSON or as a table.
    pub fn print(&self, json: bool) -> Result<(), Failure> {
        if json {
            return output::print_json(self);
        }
        let head = R::HEAD.iter().map(|it| (*it).to_owned()).collect();
        let rows = self.results.iter().map(R::cells);
        let rows: Vec<_> = std::iter::once(head).chain(rows).collect();
        output::print(&aligned(&rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spreads() {
        let it = Measured::from_pairs("a".into(), "b", &[(10.0, 5.0), (30.0, 10.0), (20.0, 20.0)]);
        assert_eq!(
            (it.ns_per_frame, it.ratio, it.spread),
            (20.0, 2.0, [1.0, 3.0])
        );
        assert_eq!(it.frames_per_s, 5e7);
        let even = Measured::from_pairs("a".into(), "b", &[(1.0, 1.0), (2.0, 1.0)]);
        assert_eq!((even.ns_per_frame, even.ratio), (1.5, 1.5));
        let json = serde_json::to_value(BenchReport::new(vec![it])).expect("JSON");
        assert!(json["machine"]["cpus"].as_u64() > Some(0));
        assert_eq!(json["results"][0]["spread"], serde_json::json!([1.0, 3.0]));
    }
}
