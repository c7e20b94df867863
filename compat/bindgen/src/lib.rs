//! Subset of bindgen 0.59's builder that `rdma-sys` 0.3 calls, forwarded to a current bindgen.
//!
//! bindgen 0.59 panics on the AST of libclang 16 and newer ("not a valid Ident"), which Debian 13
//! and Ubuntu 24.04 ship. With this crate, one source builds with libclang 14 and with its
//! successors.

use std::{io, path::Path};

/// Subset of bindgen 0.59's `Builder` that `rdma-sys` uses.
#[derive(Default)]
pub struct Builder(current::Builder);

macro_rules! forward {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {
        impl Builder {
            $(
                #[doc = concat!("Forwards to the builder's `", stringify!($name), "`.")]
                #[must_use]
                pub fn $name(self, $($arg: $ty),*) -> Self {
                    Self(self.0.$name($($arg),*))
                }
            )*
        }
    };
}

forward! {
    allowlist_function(pattern: &str);
    allowlist_type(pattern: &str);
    bitfield_enum(pattern: &str);
    blocklist_type(pattern: &str);
    constified_enum_module(pattern: &str);
    derive_copy(on: bool);
    derive_debug(on: bool);
    derive_default(on: bool);
    disable_untagged_union();
    generate_comments(on: bool);
    header(path: &str);
    opaque_type(pattern: &str);
    prepend_enum_name(on: bool);
    rustified_enum(pattern: &str);
    size_t_is_usize(on: bool);
}

impl Builder {
    /// Passes arguments to clang.
    #[must_use]
    pub fn clang_args<I: IntoIterator<Item = String>>(self, args: I) -> Self {
        Self(self.0.clang_args(args))
    }

    /// Leaves formatting off regardless of the argument: the text is compiled, not read, and
    /// rustfmt need not be installed.
    #[must_use]
    pub fn rustfmt_bindings(self, _on: bool) -> Self {
        Self(self.0.formatter(current::Formatter::None))
    }

    /// Runs clang and generates the bindings.
    ///
    /// # Errors
    /// The error that bindgen reports, such as a header that cannot be parsed or a missing clang.
    pub fn generate(self) -> Result<Bindings, current::BindgenError> {
        self.0.generate().map(Bindings)
    }
}

/// Generated bindings.
pub struct Bindings(current::Bindings);

impl Bindings {
    /// Writes the bindings to a file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_to_file<P: AsRef<Path>>(&self, path: P) -> io::Result<()> {
        self.0.write_to_file(path)
    }
}
