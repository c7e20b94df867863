//! Compilation of filters in a separate thread: one expression at a time, on a stack of known size.
//!
//! A compilation cannot be cancelled. If it takes too long, the caller gives up, but the thread
//! continues, and no other compilation starts until it ends. Its result is cached, so that a later
//! request for the same expression returns at once.

use super::{error::FilterError, program::Program};
use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc::sync_channel},
    thread,
    time::{Duration, Instant},
};

/// Stack size of the filter thread in bytes, without the share that grows with the expression.
const STACK: usize = 2 << 20;
/// Stack size of the filter thread in bytes per byte of an expression. `port 1 and 2 and 3...`
/// needs the most, 260 bytes.
const STACK_OF_BYTE: usize = 1024;
/// Maximum number of cached filter programs. A capture compiles each of its few expressions several
/// times.
const KEPT: usize = 16;

/// Function that compiles a filter expression on the filter thread.
type Compile = fn(&str) -> Result<Program, FilterError>;

/// State of the filter compiler: busy flag and program cache.
#[derive(Default)]
struct Compiler {
    /// Set while a filter expression is being compiled.
    is_busy: bool,
    /// Cached filter programs by expression, the latest first.
    kept: VecDeque<(String, Program)>,
}

/// State of the filter compiler, shared by all callers in the process.
static COMPILER: Mutex<Compiler> = Mutex::new(Compiler {
    is_busy: false,
    kept: VecDeque::new(),
});
/// Condition variable that is notified when the compilation of a filter expression ends.
static ENDED: Condvar = Condvar::new();

fn compiler() -> MutexGuard<'static, Compiler> {
    COMPILER.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the cached program of a filter expression, or runs `compile` on the filter thread and
/// waits at most `timeout` for the program.
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
    let turn = CompilationGuard;
    let (sender, result) = sync_channel(1);
    let text = expression.to_owned();
    let work = move || {
        let compiled = compile(&text);
        if let Ok(program) = &compiled {
            keep(text, program.clone());
        }
        drop(turn);
        // The receiver is gone if the compilation took too long.
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

/// Guard of a running compilation of a filter expression. Clears the compiler's busy flag when
/// dropped, also on a panic.
struct CompilationGuard;

impl Drop for CompilationGuard {
    fn drop(&mut self) {
        compiler().is_busy = false;
        ENDED.notify_all();
    }
}
