//! The thread on which libpcap compiles: one expression at a time, on a stack of known size.
//!
//! A compilation cannot be cancelled. One that takes too long is abandoned: its thread continues, and until it ends no other
//! begins. Its result is kept then, so that a later request for the same expression gets it at once.

use super::{expression::FilterError, program::Program};
use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc::sync_channel},
    thread,
    time::{Duration, Instant},
};

/// Stack for everything but the depth of an expression.
const STACK: usize = 2 << 20;
/// Stack for each byte of an expression. `port 1 and 2 and 3...` takes most, 260 bytes.
const STACK_OF_BYTE: usize = 1024;
/// Programs that are kept: a capture asks several times for each of its few expressions.
const KEPT: usize = 16;

/// Function that compiles an expression on the filter thread.
type Compile = fn(&str) -> Result<Program, FilterError>;

#[derive(Default)]
struct Compiler {
    /// An expression is being compiled.
    is_busy: bool,
    /// The last programs, the latest first.
    kept: VecDeque<(String, Program)>,
}

static COMPILER: Mutex<Compiler> = Mutex::new(Compiler {
    is_busy: false,
    kept: VecDeque::new(),
});
/// Notified when a compilation has ended.
static ENDED: Condvar = Condvar::new();

fn compiler() -> MutexGuard<'static, Compiler> {
    COMPILER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `compile` on the filter thread, unless the expression's program is kept, and waits for it at most `timeout`.
pub(super) fn compile(
    expression: &str,
    timeout: Duration,
    compile: Compile,
) -> Result<Program, FilterError> {
    let deadline = Instant::now() + timeout;
    let mut compiler = compiler();
    loop {
        if let Some((_, program)) = compiler.kept.iter().find(|it| it.0 == expression) {
            return Ok(program.clone());
        }
        if !compiler.is_busy {
            break;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(FilterError::Busy);
        }
        compiler = ENDED
            .wait_timeout(compiler, left)
            .unwrap_or_else(PoisonError::into_inner)
            .0;
    }
    compiler.is_busy = true;
    drop(compiler);
    let turn = Turn;
    let (sender, result) = sync_channel(1);
    let text = expression.to_owned();
    let work = move || {
        let compiled = compile(&text);
        if let Ok(program) = &compiled {
            keep(text, program.clone());
        }
        drop(turn);
        // Nothing receives it if it took too long.
        let _ = sender.send(compiled);
    };
    thread::Builder::new()
        .name("wqcap-filter".into())
        .stack_size(STACK + STACK_OF_BYTE * expression.len())
        .spawn(work)
        .map_err(|e| FilterError::NoThread(e.to_string()))?;
    let left = deadline.saturating_duration_since(Instant::now());
    result
        .recv_timeout(left)
        .unwrap_or(Err(FilterError::TooSlow))
}

fn keep(expression: String, program: Program) {
    let mut compiler = compiler();
    compiler.kept.truncate(KEPT - 1);
    compiler.kept.push_front((expression, program));
}

/// The right to compile; given back when it is dropped, also by a panic.
struct Turn;

impl Drop for Turn {
    fn drop(&mut self) {
        compiler().is_busy = false;
        ENDED.notify_all();
    }
}
