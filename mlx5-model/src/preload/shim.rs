//! Building blocks of the shims.

use crate::process::Errno;
use crate::process::real::{errno, set_errno};

/// Runs the model's own implementation of a C function. Returns its result, or `failed` with errno
/// set; errno stays unchanged if the call succeeds.
pub fn with_errno<T>(failed: T, own: impl FnOnce() -> Result<T, Errno>) -> T {
    let before = errno();
    match own() {
        Ok(value) => {
            set_errno(before);
            value
        }
        Err(error) => {
            set_errno(error);
            failed
        }
    }
}

/// Calls the C library's function that a shim replaces, with the program's own arguments.
macro_rules! next {
    ($name:ident($($arg:expr),*)) => {
        // SAFETY: the program keeps the C function's contract.
        unsafe { $crate::process::real::raw::$name($($arg),*) }
    };
}
pub(super) use next;

/// Exports a shim as a C function under its own name, except to the test runner of the unit tests
/// and to the fuzzer.
macro_rules! export {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$meta])*
        ///
        /// # Safety
        /// The contract of the C function of that name.
        #[cfg_attr(not(any(test, fuzzing)), unsafe(no_mangle))]
        pub unsafe extern "C" fn $name($($arg: $ty),*) $(-> $ret)? $body
    )*};
}
pub(super) use export;
