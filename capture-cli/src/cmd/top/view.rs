//! Screen of a capture. Parts that do not fit are left out, the least important first: senders,
//! protocols, columns.

use crate::{
    cmd::ctl::state,
    term::{
        table::{bytes, rate, scaled, thousands, valid_seconds},
        text::Text,
    },
};
use ratatui::{
    Frame,
    layout::{Alignment, Constraint, Layout, Rect},
    style::{Color, Style, Stylize},
    text::Line,
    widgets::{Paragraph, Row, Table},
};
use wqcap_control::protocol::{Stats, Status};
use wqcap_engine::stats::{LINES, LOSSES, QueueLedger};

/// Screen width in columns from which `wqcap top` shows senders to the right of the queues instead
/// of below them.
const WIDE: u16 = 110;
/// Minimum number of screen lines for the table of senders: a heading and two senders.
const LEAST_SENDERS: u16 = 3;
/// Multiple of its fair share of frames at which a queue counts as skewed.
const SKEWED: f64 = 1.5;

/// Last two answers of the control service, as drawn by `wqcap top`.
pub struct View {
    /// Capture status in the last answer of the control service.
    status: Box<Status>,
    /// Counters in the last answer of the control service.
    now: Box<Stats>,
    /// Counters in the answer before the last one, from which rates are computed; `None`: no such
    /// answer.
    before: Option<Box<Stats>>,
}

/// Rates and counters of a receive queue between two answers of the control service.
struct QueueRates {
    /// Number of the receive queue.
    queue: u16,
    /// Number of the receive queue as text, with the name of its port if there are several.
    name: String,
    /// Number of frames per second that the queue received.
    frames: f64,
    /// Number of bits per second that the queue captured.
    bits: f64,
    /// Total number of frames that the queue captured.
    captured: u64,
    /// Total number of frames that the queue left out on purpose, such as by a filter.
    left_out: u64,
    /// Total number of frames that the queue lost.
    lost: u64,
}

impl View {
    /// Creates the live view from the first answer of the control service, which has no rates yet.
    pub fn new((status, now): (Box<Status>, Box<Stats>)) -> Self {
        Self {
            status,
            now,
            before: None,
        }
    }

    /// Replaces the last answer of the control service, and keeps its counters for rates.
    pub fn update(&mut self, (status, now): (Box<Status>, Box<Stats>)) {
        self.status = status;
        self.before = Some(std::mem::replace(&mut self.now, now));
    }

    /// Draws the whole screen of `wqcap top`.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let flows = self.flows();
        let area = frame.area();
        let head = self.head(&flows, area);
        let rows = Layout::vertical([
            Constraint::Length(u16::try_from(head.len()).unwrap_or(u16::MAX)),
            Constraint::Fill(1),
            Constraint::Length(1),
        ]);
        let [top, middle, bottom] = rows.areas(area);
        frame.render_widget(Paragraph::new(head), top);
        let (queues, senders) = parts(middle, flows.len());
        frame.render_widget(queue_table(&flows, queues.width), queues);
        if let Some(senders) = senders {
            self.draw_senders(frame, senders);
        }
        // One line of the table is its heading.
        let hidden = flows
            .len()
            .saturating_sub(usize::from(queues.height).saturating_sub(1));
        let hint = match hidden {
            0 => "q quits".to_owned(),
            hidden => format!("{hidden} more queues need a higher terminal; q quits"),
        };
        let hint = Line::from(hint).alignment(Alignment::Right).dim();
        frame.render_widget(hint, bottom);
    }

    /// Returns the screen lines on all queues together, the most important ones first.
    fn head(&self, flows: &[QueueRates], area: Rect) -> Vec<Line<'static>> {
        let capture = &self.status.capture;
        let elapsed = valid_seconds(self.now.elapsed_s).as_secs();
        let (hours, minutes, seconds) = (elapsed / 3600, elapsed / 60 % 60, elapsed % 60);
        let total = &self.now.ledger.total;
        let sum = |of: fn(&QueueRates) -> f64| flows.iter().map(of).sum::<f64>();
        let mut head = vec![
            Line::from(format!(
                "{} port {}  {} {hours}:{minutes:02}:{seconds:02}",
                Text(&capture.device),
                capture.port,
                state(capture.state)
            ))
            .bold(),
            Line::from(format!(
                "{}frames/s  {}bit/s  captured {}",
                scaled(sum(|it| it.frames)),
                scaled(sum(|it| it.bits)),
                thousands(total.captured)
            )),
        ];
        head.extend(self.losses(usize::from(area.width)));
        head.push(self.balance(flows));
        let filter =
            (!capture.filter.is_empty()).then(|| Line::from(format!("filter  {}", capture.filter)));
        // The queues, their heading and the last line have priority.
        let room = usize::from(area.height).saturating_sub(head.len() + flows.len() + 2);
        head.extend(filter.into_iter().chain(self.protocols()).take(room));
        head
    }

    /// Returns the screen lines with all losses by cause, those of the NIC by the names of its
    /// counters, on as many lines as necessary.
    fn losses(&self, width: usize) -> Vec<Line<'static>> {
        let queues = &self.now.ledger.queues;
        let ours = LINES.iter().filter(|(name, _)| LOSSES.contains(name));
        let ours = ours.map(|(name, of)| {
            let lines = queues.iter().map(of);
            ((*name).to_owned(), lines.fold(0, u64::saturating_add))
        });
        let nic = self.now.nic.iter();
        let nic = nic.filter_map(|(name, counter)| Some((name.clone(), counter.value()?)));
        let causes = ours.chain(nic).filter(|(_, n)| *n > 0);
        let mut lines = vec![String::from("lost")];
        for (name, n) in causes {
            let cause = format!("  {} {}", Text(name), thousands(n));
            match lines.last_mut() {
                Some(line) if line == "lost" || line.len() + cause.len() <= width => {
                    *line += &cause
                }
                _ => lines.push(format!("    {cause}")),
            }
        }
        if lines == ["lost"] {
            return vec![Line::from("lost nothing").green()];
        }
        lines
            .into_iter()
            .map(|line| Line::from(line).red())
            .collect()
    }

    /// Returns the screen line with the skew of the receive queues and the use of the write
    /// buffers.
    fn balance(&self, flows: &[QueueRates]) -> Line<'static> {
        let mut parts = Vec::new();
        let mut style = Style::new();
        if let Some((skew, queue)) = skew(flows) {
            parts.push(format!("skew {skew:.2} (q{queue})"));
            if skew >= SKEWED {
                style = style.fg(Color::Yellow);
            }
        }
        if let Some(disk) = &self.now.disk {
            parts.push(format!(
                "write buffers {} of {}",
                bytes(disk.used),
                bytes(disk.buffer)
            ));
        }
        Line::styled(parts.join("  "), style)
    }

    /// Returns the screen line with the share of each protocol, or `None` if statistics are off.
    fn protocols(&self) -> Option<Line<'static>> {
        let statistics = self.now.statistics.as_ref()?;
        let all = statistics.frames.max(1) as f64;
        let mut shares: Vec<_> = statistics
            .protocols
            .iter()
            .filter(|(_, volume)| volume.frames > 0)
            .collect();
        shares.sort_by_key(|(_, volume)| std::cmp::Reverse(volume.frames));
        let shares = shares
            .into_iter()
            .map(|(name, it)| format!("{name} {:.0} %", it.frames as f64 * 100.0 / all));
        Some(Line::from(shares.collect::<Vec<_>>().join("  ")))
    }

    /// Draws the table of the senders with the most traffic.
    fn draw_senders(&self, frame: &mut Frame<'_>, area: Rect) {
        let Some(statistics) = &self.now.statistics else {
            let off = "senders: capture.statistics is off";
            return frame.render_widget(Paragraph::new(off).dim(), area);
        };
        let talkers = &statistics.talkers;
        let over = talkers.over_s.max(1.0);
        let rows = talkers.by_bytes.iter().map(|it| {
            let bits = it.count as f64 * 8.0 / over;
            let sent = right(format!("{}bit/s", scaled(bits)));
            Row::new([Line::from(it.address.clone()), sent])
        });
        // Length of the longest IPv6 address.
        let columns = [Constraint::Max(39), Constraint::Length(13)];
        let header = Row::new([Line::from("sender"), right("sent".to_owned())]);
        let table = Table::new(rows, columns).header(header.dim());
        frame.render_widget(table, area);
    }

    /// Returns the rates and counters of each receive queue, rates since the answer before the last
    /// one.
    fn flows(&self) -> Vec<QueueRates> {
        let now = &self.now;
        let before = self.before.as_ref();
        // A new capture may have started in between.
        let time = valid_seconds(before.map_or(0.0, |it| now.elapsed_s - it.elapsed_s));
        let of = |it: &QueueLedger| {
            let was =
                before.and_then(|all| all.ledger.queues.iter().find(|was| was.queue == it.queue));
            let grown =
                |of: fn(&QueueLedger) -> u64| rate(of(it).saturating_sub(was.map_or(0, of)), time);
            QueueRates {
                queue: it.queue,
                name: Text(it.name(&now.ledger.ports)).to_string(),
                frames: grown(|it| it.received),
                bits: grown(|it| it.bytes) * 8.0,
                captured: it.captured,
                left_out: it.left_out(),
                lost: it.lost(),
            }
        };
        now.ledger.queues.iter().map(of).collect()
    }
}

/// Returns the busiest queue and its number of frames as a multiple of a fair share; `None`: a
/// single queue, or no frames.
fn skew(flows: &[QueueRates]) -> Option<(f64, u16)> {
    let all: f64 = flows.iter().map(|it| it.frames).sum();
    let busiest = flows.iter().max_by(|a, b| a.frames.total_cmp(&b.frames))?;
    (flows.len() > 1 && all > 0.0)
        .then(|| (busiest.frames * flows.len() as f64 / all, busiest.queue))
}

/// Returns the screen areas for the table of queues and, if there is room, for the table of
/// senders.
fn parts(area: Rect, queues: usize) -> (Rect, Option<Rect>) {
    if area.width >= WIDE {
        let [left, right] =
            Layout::horizontal([Constraint::Length(72), Constraint::Fill(1)]).areas(area);
        return (left, Some(right));
    }
    let lines = u16::try_from(queues + 1).unwrap_or(u16::MAX);
    if area.height < lines.saturating_add(1 + LEAST_SENDERS) {
        return (area, None);
    }
    let [queues, _, senders] = Layout::vertical([
        Constraint::Length(lines),
        Constraint::Length(1),
        Constraint::Fill(1),
    ])
    .areas(area);
    (queues, Some(senders))
}

/// Returns a right-aligned line of text for the screen.
fn right(text: String) -> Line<'static> {
    Line::from(text).alignment(Alignment::Right)
}

/// Column of the table of queues: its name, its width in characters, and the text of a cell.
type Column = (&'static str, u16, fn(&QueueRates) -> String);

/// Returns the table of receive queues, with as many columns as fit into `width`.
fn queue_table(flows: &[QueueRates], width: u16) -> Table<'static> {
    let names = flows.iter().map(|it| it.name.chars().count());
    let name_width = u16::try_from(names.max().unwrap_or(0))
        .unwrap_or(u16::MAX)
        .max(5);
    let columns: [Column; 6] = [
        ("queue", name_width, |it| it.name.clone()),
        ("frames/s", 9, |it| scaled(it.frames).trim_end().to_owned()),
        ("lost", 11, |it| thousands(it.lost)),
        ("bit/s", 9, |it| scaled(it.bits).trim_end().to_owned()),
        ("captured", 15, |it| thousands(it.captured)),
        ("left out", 15, |it| thousands(it.left_out)),
    ];
    let mut room = width;
    let fitting = columns.iter().take_while(|(_, width, _)| {
        let fits = room >= *width;
        room = room.saturating_sub(width + 1);
        fits
    });
    let fitting: Vec<_> = fitting.collect();
    let rows = flows.iter().map(|flow| {
        let row = Row::new(fitting.iter().map(|(_, _, of)| right(of(flow))));
        if flow.lost > 0 { row.red() } else { row }
    });
    let widths = fitting
        .iter()
        .map(|(_, width, _)| Constraint::Length(*width));
    let header = fitting.iter().map(|(name, _, _)| right((*name).to_owned()));
    Table::new(rows.collect::<Vec<_>>(), widths).header(Row::new(header).dim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::{Terminal, backend::TestBackend};
    use std::collections::BTreeMap;
    use wqcap_control::protocol::{ControlStatus, LedgerSnapshot, WriteBuffers};
    use wqcap_engine::{
        analysis::live::{Talker, TopTalkers, TrafficSnapshot, Volume},
        stats::Counter,
    };

    /// Returns counters with one queue for each entry of `received`, a tenth of it lost.
    fn stats(elapsed_s: f64, received: &[u64]) -> Box<Stats> {
        let queues: Vec<_> = (0u16..)
            .zip(received)
            .map(|(queue, &n)| QueueLedger {
                queue,
                received: n,
                captured: n - n / 10,
                dropped_storage: n / 10,
                bytes: n * 100,
                ..QueueLedger::default()
            })
            .collect();
        Box::new(Stats {
            elapsed_s,
            ledger: LedgerSnapshot {
                ports: Vec::new(),
                total: QueueLedger::total(&queues).into(),
                queues,
            },
            nic: BTreeMap::from([("out_of_buffer".into(), Counter::Value(7))]),
            beats: Vec::new(),
            disk: Some(WriteBuffers {
                buffer: 64 << 20,
                used: 3 << 20,
                waiting_ms: 0,
            }),
            statistics: Some(TrafficSnapshot {
                frames: 100,
                protocols: BTreeMap::from([(
                    "tcp".into(),
                    Volume {
                        frames: 75,
                        bytes: 1,
                    },
                )]),
                talkers: TopTalkers {
                    over_s: 10.0,
                    by_bytes: vec![Talker {
                        address: "10.1.2.3".into(),
                        count: 1_250_000,
                        error: 0,
                    }],
                    by_frames: Vec::new(),
                },
                ..empty()
            }),
        })
    }

    /// Returns statistics without frames.
    fn empty() -> TrafficSnapshot {
        TrafficSnapshot {
            frames: 0,
            bytes: 0,
            frames_per_s: 0.0,
            bits_per_s: 0.0,
            queues: Vec::new(),
            protocols: BTreeMap::new(),
            traits: BTreeMap::new(),
            sizes: Vec::new(),
            talkers: TopTalkers {
                over_s: 0.0,
                by_bytes: Vec::new(),
                by_frames: Vec::new(),
            },
            inter_arrival: None,
            hold: None,
        }
    }

    /// Returns a view with two answers, 2 s apart.
    fn view() -> View {
        let status = || {
            let mut status = Status {
                capture: Default::default(),
                control: ControlStatus::default(),
            };
            status.capture.device = "mlx5_0".into();
            status.capture.port = 1;
            Box::new(status)
        };
        let mut view = View::new((status(), stats(10.0, &[1000, 1000])));
        view.update((status(), stats(12.0, &[7000, 3000])));
        view
    }

    /// Returns the lines of the screen, without trailing blanks.
    fn screen(view: &View, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view.draw(frame)).unwrap();
        let cells: Vec<_> = terminal.backend().buffer().content().to_vec();
        let lines = cells.chunks(usize::from(width.max(1)));
        lines
            .map(|line| {
                let text: String = line.iter().map(|cell| cell.symbol()).collect();
                text.trim_end().to_owned()
            })
            .collect()
    }

    #[test]
    fn everything_is_on_a_large_screen() {
        for width in [80, 200] {
            let text = screen(&view(), width, 24).join("\n");
            for part in [
                "mlx5_0 port 1",
                "0:00:12",
                "4.00 kframes/s  3.20 Mbit/s  captured 9,000",
                "dropped_storage 1,000  out_of_buffer 7",
                "skew 1.50 (q0)  write buffers 3 MiB of 64 MiB",
                "tcp 75 %",
                "    0    3.00 k         700    2.40 M           6,300               0",
                "10.1.2.3",
                "1.00 Mbit/s",
                "q quits",
            ] {
                assert!(text.contains(part), "{part:?} is not at {width}:\n{text}");
            }
        }
    }

    #[test]
    fn names_do_not_control_the_terminal() {
        let mut view = view();
        view.status.capture.device = "a\u{202e}b".into();
        view.now.ledger.ports = vec!["c\u{202e}d".into(), "e".into()];
        let text = screen(&view, 120, 24).join("\n");
        for part in ["a\\u{202e}b port 1", "c\\u{202e}d"] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert!(!text.contains('\u{202e}'), "{text}");
    }

    #[test]
    fn a_small_screen_has_the_most_important_parts() {
        let lines = screen(&view(), 40, 10);
        let text = lines.join("\n");
        for part in [
            "mlx5_0 port 1",
            "4.00 kframes/s",
            "\nlost  dropped_storage 1,000\n      out_of_buffer 7\nskew 1.50",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert!(
            text.contains("    1    1.00 k         300     800 k"),
            "{text}"
        );
        assert!(!text.contains("10.1.2.3"), "{text}");
    }

    #[test]
    fn every_size_can_be_drawn() {
        for width in [0, 1, 3, 17, 40] {
            for height in [0, 1, 2, 5, 9] {
                let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
                terminal.draw(|frame| view().draw(frame)).unwrap();
            }
        }
    }

    #[test]
    fn invalid_times_are_drawn_as_zero() {
        let mut view = view();
        for elapsed_s in [1e300, f64::NAN, -1.0] {
            view.now.elapsed_s = elapsed_s;
            assert!(screen(&view, 80, 24)[0].contains("0:00:00"));
        }
    }

    #[test]
    fn without_frames_there_is_no_skew() {
        let mut view = view();
        view.before = None;
        assert!(skew(&view.flows()).is_none());
        view.now.nic.clear();
        view.now
            .ledger
            .queues
            .iter_mut()
            .for_each(|it| it.dropped_storage = 0);
        assert!(screen(&view, 80, 24).join("\n").contains("lost nothing"));
    }
}
