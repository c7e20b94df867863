//! `wqcap top`: shows a live view of a running capture on a terminal.
//!
//! One thread polls the service, one reads keys, and this one draws. Drawing waits for neither: a
//! slow service must not keep the user from leaving, and reading keys from a closed terminal spins.
//! [`view`] lays out the answers for a screen of any size.
//!
//! Invariant: the terminal is restored however the command ends; errors are printed after that.

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
use wqcap_control::{
    client::Client,
    protocol::{AnswerBody, Command, Stats, Status},
};

/// Maximum delay until `wqcap top` handles a signal or an answer of the control service.
const POLL: Duration = Duration::from_millis(50);

/// Status and counters of the capture from the control service, or the failure of the request for
/// them.
type Answer = Result<Readings, Failure>;

/// Status and counters of the capture.
type Readings = (Box<Status>, Box<Stats>);

/// Shows the live view of a capture until a key, a signal, or the end of the capture ends it.
pub fn top(args: &TopArgs) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Failure::refused(
            "stdin or stdout is not a terminal; `wqcap ctl watch` prints lines",
        ));
    }
    let failed =
        |e: io::Error| Failure::failed(format!("`wqcap top` cannot use the terminal: {e}"));
    let stop = signals::catch()?;
    let (sender, answers) = sync_channel(1);
    let request = args.clone();
    start(move || poll_service(&request, &sender))?;
    // An error of connecting is printed before the terminal is changed.
    let Some(first) = first_answer(&answers, &stop)? else {
        return Ok(());
    };
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let (sender, keys) = sync_channel(16);
    let ended = start(move || forward_events(&sender))
        .and_then(|()| draw(&mut terminal, View::new(first), &answers, &keys, &stop));
    leave(terminal);
    match output::is_gone(&io::stdin()) {
        true => Ok(()),
        false => ended,
    }
}

/// Restores the terminal. If the terminal is gone, ratatui would print an error to it, which panics.
fn leave(mut terminal: DefaultTerminal) {
    match terminal.show_cursor() {
        Ok(()) => drop(terminal),
        Err(_) => std::mem::forget(terminal),
    }
    let _ = ratatui::try_restore();
}

/// Starts a thread of the live view.
fn start(run: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let started = thread::Builder::new().spawn(run);
    started
        .map(drop)
        .map_err(|e| Failure::of_setup(format_args!("cannot start a thread: {e}"), &e))
}

/// Waits for the first answer of the control service; `None` if a signal asks for the end before.
fn first_answer(
    answers: &Receiver<Answer>,
    stop: &AtomicBool,
) -> Result<Option<Readings>, Failure> {
    while !stop.load(Ordering::Relaxed) {
        match answers.recv_timeout(POLL) {
            Ok(answer) => return answer.map(Some),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(poller_ended()),
        }
    }
    Ok(None)
}

/// Returns the failure for the end of the thread that polls the control service.
fn poller_ended() -> Failure {
    Failure::failed("internal error: the thread that polls the control service has ended")
}

/// Forwards events of the terminal, such as keys, until reading them fails or the receiver is gone.
fn forward_events(events: &SyncSender<Event>) {
    while let Ok(event) = event::read()
        && events.send(event).is_ok()
    {}
}

/// Polls the control service for status and counters until a request fails or the receiver is gone.
fn poll_service(args: &TopArgs, answers: &SyncSender<Answer>) {
    let mut client = match ctl::connect(&args.service) {
        Ok(client) => client,
        Err(e) => return drop(answers.send(Err(e))),
    };
    loop {
        let answer = request_answer(&mut client, args.service.timeout);
        let last = answer.is_err();
        if answers.send(answer).is_err() || last {
            return;
        }
        thread::sleep(args.every);
    }
}

/// Requests the status and the counters of the capture from the control service.
fn request_answer(client: &mut Client, timeout: Duration) -> Answer {
    let mut ask = |command| client.request(command, None, timeout).map_err(ctl::ended);
    match (ask(Command::Status)?, ask(Command::Stats)?) {
        (AnswerBody::Status(status), AnswerBody::Stats(stats)) => Ok((status, stats)),
        _ => Err(Failure::failed(
            "the control service sent an answer of another kind; use the wqcap version of the capture",
        )),
    }
}

/// Draws the live view for each answer of the control service, until a key, a signal, or the end of
/// the capture.
fn draw(
    terminal: &mut DefaultTerminal,
    mut view: View,
    answers: &Receiver<Answer>,
    keys: &Receiver<Event>,
    stop: &AtomicBool,
) -> Result<(), Failure> {
    let failed =
        |e: io::Error| Failure::failed(format!("`wqcap top` cannot use the terminal: {e}"));
    let mut changed = true;
    while !stop.load(Ordering::Relaxed) && !output::is_gone(&io::stdin()) {
        match answers.try_recv() {
            Ok(answer) => {
                view.update(answer?);
                changed = true;
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err(poller_ended()),
        }
        if changed {
            terminal.draw(|frame| view.draw(frame)).map_err(failed)?;
            changed = false;
        }
        match keys.recv_timeout(POLL) {
            Ok(Event::Key(key)) if ends(key) => return Ok(()),
            Ok(Event::Resize(..)) => changed = true,
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
    Ok(())
}

/// Returns `true` if a key ends the live view. In raw mode the terminal reports ^C as a key.
fn ends(key: KeyEvent) -> bool {
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    key.kind == KeyEventKind::Press
        && match key.code {
            KeyCode::Char('q') | KeyCode::Esc => true,
            KeyCode::Char('c') => control,
            _ => false,
        }
}
