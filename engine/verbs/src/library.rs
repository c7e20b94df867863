//! Shared libraries that are loaded when their first function is called.

use libloading::Library;

/// Error of a library that cannot be loaded, or that lacks a function.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot use {file}: {source}; RDMA devices need rdma-core 28 or newer (Debian and Ubuntu: apt install \
     ibverbs-providers librdmacm1; RHEL and Fedora: dnf install libibverbs librdmacm)"
)]
pub struct LibraryError {
    /// File name of the library, such as `libibverbs.so.1`.
    file: &'static str,
    /// Error of the dynamic loader.
    source: libloading::Error,
}

/// Loads the library `file`. It is never unloaded.
pub(crate) fn load(file: &'static str) -> Result<Library, LibraryError> {
    // SAFETY: the libraries of rdma-core have no initialisers with preconditions: programs are
    // linked with them.
    unsafe { Library::new(file) }.map_err(|source| LibraryError { file, source })
}

/// Returns the function `name` of `library`, whose file is `file`.
///
/// # Safety
/// `F` is the type of the function.
pub(crate) unsafe fn function<F: Copy>(
    library: &Library,
    file: &'static str,
    name: &'static str,
) -> Result<F, LibraryError> {
    // SAFETY: guaranteed by the caller.
    match unsafe { library.get::<F>(name.as_bytes()) } {
        Ok(symbol) => Ok(*symbol),
        Err(source) => Err(LibraryError { file, source }),
    }
}

/// Declares the functions of a shared library: a type with their addresses, whose `get` loads the
/// library once, and a function with each name that calls through it.
///
/// The functions of an object can be called only after the library was loaded for that object, so
/// only code that creates the first object handles [`LibraryError`], by `get`.
macro_rules! library {
    (
        $(#[$doc:meta])*
        $visibility:vis $table:ident in $file:literal, declared in $bindings:path;
        $(fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $returned:ty)?;)*
    ) => {
        $(#[$doc])*
        $visibility struct $table {
            $($name: unsafe extern "C" fn($($type),*) $(-> $returned)?,)*
        }

        impl $table {
            /// Returns the functions of the library, which the first call loads.
            ///
            /// # Errors
            /// The library is not installed, or lacks a function.
            $visibility fn get() -> Result<&'static Self, &'static $crate::library::LibraryError> {
                static LOADED: std::sync::OnceLock<Result<$table, $crate::library::LibraryError>> =
                    std::sync::OnceLock::new();
                LOADED.get_or_init(Self::load).as_ref()
            }

            fn load() -> Result<Self, $crate::library::LibraryError> {
                // The table has addresses in the library, so it stays loaded.
                let library = std::mem::ManuallyDrop::new($crate::library::load($file)?);
                // SAFETY: the constant below compares each type with its declaration.
                unsafe {
                    Ok(Self {
                        $($name: $crate::library::function(&library, $file, stringify!($name))?,)*
                    })
                }
            }

            /// Returns the functions of the library for a call with one of its objects.
            fn loaded() -> &'static Self {
                match Self::get() {
                    Ok(table) => table,
                    Err(error) => panic!("a function of an rdma-core library was called before the library was loaded: {error}"),
                }
            }
        }

        const _: () = {
            use $bindings as bindings;
            $(let _: unsafe extern "C" fn($($type),*) $(-> $returned)? = bindings::$name;)*
        };

        $(
            #[doc = concat!("`", stringify!($name), "` of ", $file, "; see its manual page.")]
            ///
            /// # Safety
            /// As the manual page states.
            pub unsafe fn $name($($arg: $type),*) $(-> $returned)? {
                // SAFETY: guaranteed by the caller.
                unsafe { ($table::loaded().$name)($($arg),*) }
            }
        )*
    };
}
pub(crate) use library;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_library_and_an_absent_function_are_named() {
        let absent = load("libwqcap-absent.so.1").expect_err("there is no such library");
        let text = absent.to_string();
        assert!(text.contains("cannot use libwqcap-absent.so.1"), "{text}");
        assert!(text.contains("apt install"), "{text}");
        let libc = load("libc.so.6").expect("every process has it");
        // SAFETY: no function of this name is called.
        let found =
            unsafe { function::<unsafe extern "C" fn()>(&libc, "libc.so.6", "wqcap_absent") };
        let text = found.expect_err("there is no such function").to_string();
        assert!(text.contains("wqcap_absent"), "{text}");
    }
}
