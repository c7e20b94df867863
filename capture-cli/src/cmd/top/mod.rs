//! `wqcap top`: a running capture as it goes, on a terminal.
//!
//! A thread asks the service, another one listens to keys, and this one draws. It waits for neither: a service that takes
//! its time keeps nobody from leaving, and reading keys spins on a terminal that is gone. [`view`] makes a screen of what was answered, of any size.
//!
//! Invariant: whatever ends it, the terminal is as it was before; errors are told after that.

mod view;

use crate::{args::TopArgs, cmd::ctl, daemon::signals, failure::Failure, term::output};
use ratatui::{
    DefaultTerminal,
    crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
};
use std::{
    io::{self, IsTerminal},
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel},
    },
    thread,
    time::Duration,
};
use view::View;
use wqcap_engine::control::{
    client::Client,
    protocol::{AnswerBody, Command, Stats, Status},
};

/// How long a signal or an answer may go unnoticed.
const LOOK: Duration = Duration::from_millis(50);

/// CaptureState and counters of one moment.
type Answer = Result<(Box<Status>, Box<Stats>), Failure>;

/// Draws until a key, a signal, or the end of the capture.
pub fn top(args: &TopArgs) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::refused(
            "top draws on a terminal; `wqcap ctl watch` prints lines",
        ));
    }
    let failed = |e: io::Error| Failure::failed(format!("the terminal: {e}"));
    let stop = signals::catch().map_err(failed)?;
    let (sender, answers) = sync_channel(1);
    let asked = args.clone();
    thread::spawn(move || ask(&asked, &sender));
    // Who cannot be reached is told of on an untouched terminal.
    let first = answers.recv().unwrap_or_else(|_| Err(nobody_asks()))?;
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let (sender, keys) = sync_channel(16);
    thread::spawn(move || listen(&sender));
    let ended = draw(&mut terminal, View::new(first), &answers, &keys, &stop);
    if output::is_gone(&io::stdin()) {
        return Ok(());
    }
    ratatui::restore();
    ended
}

fn nobody_asks() -> Failure {
    Failure::failed("internal error: the polling thread has ended")
}

/// Hands on what the terminal sends, until that fails or nobody wants it.
fn listen(events: &SyncSender<Event>) {
    while let Ok(event) = event::read()
        && events.send(event).is_ok()
    {}
}

/// Asks again and again, until an answer is missing or nobody wants it.
fn ask(args: &TopArgs, answers: &SyncSender<Answer>) {
    let mut client = match ctl::connect(&args.service) {
        Ok(client) => client,
        Err(e) => return drop(answers.send(Err(e))),
    };
    loop {
        let answer = moment(&mut client, args.service.timeout);
        let last = answer.is_err();
        if answers.send(answer).is_err() || last {
            return;
        }
        thread::sleep(args.every);
    }
}

fn moment(client: &mut Client, timeout: Duration) -> Answer {
    let mut ask = |command| client.request(command, None, timeout).map_err(ctl::ended);
    match (ask(Command::Status)?, ask(Command::Stats)?) {
        (AnswerBody::Status(status), AnswerBody::Stats(stats)) => Ok((status, stats)),
        _ => Err(Failure::failed("the service sent an unexpected answer")),
    }
}

fn draw(
    terminal: &mut DefaultTerminal,
    mut view: View,
    answers: &Receiver<Answer>,
    keys: &Receiver<Event>,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let failed = |e: io::Error| Failure::failed(format!("the terminal: {e}"));
    let mut changed = true;
    while !stop.load(Ordering::Relaxed) && !output::is_gone(&io::stdin()) {
        match answers.try_recv() {
            Ok(answer) => {
                view.goes_on(answer?);
                changed = true;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err(nobody_asks()),
        }
        if changed {
            terminal.draw(|frame| view.draw(frame)).map_err(failed)?;
            changed = false;
        }
        match keys.recv_timeout(LOOK) {
            Ok(Event::Key(key)) if ends(key) => return Ok(()),
            Ok(Event::Resize(..)) => changed = true,
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
    Ok(())
}

/// The terminal sends ^C as a key while it is drawn on.
fn ends(key: KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press
        && match key.code {
            KeyCode::Char('q') | KeyCode::Esc => true,
            KeyCode::Char('c') => control,
            _ => false,
        }
}
