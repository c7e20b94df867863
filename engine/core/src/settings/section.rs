//! The macro by which sections of the configuration are declared.

/// Declares a section of the configuration: its keys, each with its default.
#[macro_export]
macro_rules! section {
    ($(#[$doc:meta])* pub struct $name:ident { $($(#[$key_doc:meta])* pub $key:ident: $type:ty = $default:expr,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name { $($(#[$key_doc])* pub $key: $type,)+ }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)+ }
            }
        }
    };
}
