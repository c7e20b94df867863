//! Compilation of filter expressions in a separate thread: one expression at a time, on a stack of
//! known size.
//!
//! A compilation cannot be cancelled. If it takes too long, the caller gives up, but the thread
//! continues, and the same [`FilterCompiler`] starts no other compilation until it ends. Its result
//! is cached, so that a later request for the same expression returns at once.

use super::{
    error::{FilterError, LONGEST_COMPILATION},
    expression::Filter,
    libpcap::{self, ETHERNET},
    program::Program,
};
use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError, mpsc::sync_channel},
    thread,
    time::Instant,
};

/// Stack size in bytes of the thread that compiles filters, without the share that grows with the
/// expression.
const STACK: usize = 2 << 20;
/// Stack size of the thread that compiles filters, in bytes per byte of an expression. `port 1 and
/// 2 and 3...` needs the most, 260 bytes.
const STACK_OF_BYTE: usize = 1024;
/// Length of a filter expression in bytes above which a process compiles one at a time. libpcap needs
/// up to 0.4 s for this length, and the square of that factor for longer ones.
const LONG: usize = 1024;
/// Compiler of the expressions above [`LONG`] of callers without a compiler of their own.
static LONG_EXPRESSIONS: LazyLock<FilterCompiler> = LazyLock::new(FilterCompiler::default);
/// Maximum number of cached filter programs. A capture compiles each of its few expressions several
/// times.
const KEPT: usize = 16;

impl Filter {
    /// Compiles a filter expression for Ethernet frames, in a thread of its own. A process compiles
    /// one expression above 1 KiB at a time, and further ones wait. A program that compiles
    /// repeatedly keeps a [`FilterCompiler`].
    ///
    /// # Errors
    /// libpcap rejects the expression, a limit is exceeded, or the expression tests properties that
    /// are not in a frame.
    pub fn compile(expression: &str) -> Result<Self, FilterError> {
        compiler_of(expression).compile(expression)
    }
}

/// Returns the compiler that all long expressions share, so that abandoned compilations cannot
/// accumulate; a new compiler for other expressions.
pub(super) fn compiler_of(expression: &str) -> FilterCompiler {
    match expression.len() > LONG {
        true => LONG_EXPRESSIONS.clone(),
        false => FilterCompiler::default(),
    }
}

/// Compiler of filter expressions that runs one compilation at a time, and caches the latest
/// programs. Clones share the running compilation and the cache.
#[derive(Clone, Debug, Default)]
pub struct FilterCompiler(Arc<SharedCompiler>);

/// State of a filter compiler that its clones and its threads share.
#[derive(Debug, Default)]
struct SharedCompiler {
    state: Mutex<CompilerState>,
    /// Condition variable that is notified when the compilation of a filter expression ends.
    ended: Condvar,
}

/// State of a filter compiler: busy flag and program cache.
#[derive(Debug, Default)]
struct CompilerState {
    /// `true` while a filter expression is being compiled.
    is_busy: bool,
    /// Cached filter programs by expression and link type, the latest first.
    kept: VecDeque<((String, u32), Program)>,
}

impl FilterCompiler {
    /// Returns the filter of an expression for Ethernet frames, from the cache if possible. Waits at
    /// most [`LONGEST_COMPILATION`].
    ///
    /// # Errors
    /// libpcap rejects the expression, a limit is exceeded, or the expression tests properties that
    /// are not in a frame.
    pub fn compile(&self, expression: &str) -> Result<Filter, FilterError> {
        self.compile_for(expression, ETHERNET)
    }

    /// Returns the filter of an expression for frames of a link type (LINKTYPE_ value), as
    /// [`FilterCompiler::compile`] does for Ethernet frames.
    ///
    /// # Errors
    /// Those of [`FilterCompiler::compile`]; or the expression tests properties that frames of this
    /// link type do not have.
    pub fn compile_for(&self, expression: &str, link_type: u32) -> Result<Filter, FilterError> {
        let program = match expression.trim() {
            "" => None,
            trimmed => Some(self.program(trimmed, link_type)?),
        };
        Ok(Filter::new(expression, program))
    }

    fn program(&self, expression: &str, link_type: u32) -> Result<Program, FilterError> {
        libpcap::check_limits(expression)?;
        let deadline = Instant::now() + LONGEST_COMPILATION;
        let mut state = self.0.state();
        loop {
            let is_wanted =
                |it: &&((String, u32), Program)| it.0.0 == expression && it.0.1 == link_type;
            if let Some((_, program)) = state.kept.iter().find(is_wanted) {
                return Ok(program.clone());
            }
            if !state.is_busy {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(FilterError::Busy);
            }
            let waited = self.0.ended.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.is_busy = true;
        drop(state);
        let turn = CompilationGuard(Arc::clone(&self.0));
        let (sender, result) = sync_channel(1);
        let text = expression.to_owned();
        let work = move || {
            let compiled = libpcap::compile(&text, link_type);
            if let Ok(program) = &compiled {
                turn.0.keep((text, link_type), program.clone());
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
}

impl SharedCompiler {
    fn state(&self) -> MutexGuard<'_, CompilerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, of: (String, u32), program: Program) {
        let mut state = self.state();
        state.kept.truncate(KEPT - 1);
        state.kept.push_front((of, program));
    }
}

/// Guard of a running compilation of a filter expression. Clears the compiler's busy flag when
/// dropped, also on a panic.
struct CompilationGuard(Arc<SharedCompiler>);

impl Drop for CompilationGuard {
    fn drop(&mut self) {
        self.0.state().is_busy = false;
        self.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::FileFilter;

    #[test]
    fn programs_are_cached_by_each_compiler() {
        let [one, other] = [(); 2].map(|()| FilterCompiler::default());
        let cached = |it: &FilterCompiler| it.0.state().kept.len();
        for _ in 0..2 {
            let filter = one.clone().compile(" arp").expect("compiles");
            assert_eq!(filter.expression(), " arp");
            assert_eq!((cached(&one), cached(&other)), (1, 0));
        }
        assert!(one.compile("arp arp").is_err());
        assert_eq!(cached(&one), 1);
        assert!(!one.0.state().is_busy);
    }

    #[test]
    fn long_expressions_share_a_compiler() {
        let is_cached = |expression: &str, link_type| {
            let state = LONG_EXPRESSIONS.0.state();
            let mut cached = state.kept.iter();
            cached.any(|it| it.0.0 == expression && it.0.1 == link_type)
        };
        for (last, is_long) in [(100, false), (300, true)] {
            let ports: Vec<_> = (1..=last).map(|it: u16| it.to_string()).collect();
            let expression = format!("udp port {}", ports.join(" or "));
            let filter = FileFilter::compile(&expression).expect("compiles");
            assert_eq!(is_cached(&expression, ETHERNET), is_long);
            filter.for_link_type(113).expect("compiles");
            assert_eq!(is_cached(&expression, 113), is_long);
        }
    }
}
