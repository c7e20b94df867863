//! Generator of the kernel's and the NIC's layouts from the system headers.
//!
//! The model decodes bytes that other programs wrote, so no layout is typed by hand.
//! `src/abi/generated.rs` includes the output.

use std::path::PathBuf;

/// C headers of the interfaces that the model implements: uverbs commands, mlx5's driver data in
/// them, and the rings in memory.
const HEADERS: [&str; 8] = [
    "rdma/ib_user_verbs.h",
    "rdma/mlx5-abi.h",
    "rdma/rdma_user_ioctl_cmds.h",
    "rdma/ib_user_ioctl_cmds.h",
    "rdma/ib_user_ioctl_verbs.h",
    "rdma/mlx5_user_ioctl_cmds.h",
    "rdma/mlx5_user_ioctl_verbs.h",
    "infiniband/mlx5dv.h",
];

/// Name patterns of the C types to generate in Rust. None of libibverbs's own structs (`ibv_*`,
/// `mlx5dv_*`) is needed, because they never cross the boundary between kernel and library.
const TYPES: [&str; 8] = [
    "ib_uverbs_.*",
    "ib_uverbs_ioctl_hdr",
    "uverbs_.*",
    "rdma_.*",
    "mlx5_ib_.*",
    "mlx5_(cqe64|err_cqe|tm_cqe|sigerr_cqe|mini_cqe8|rwqe_sig|bsf.*|klm|sg_copy_ctrl)",
    "mlx5_wqe_.*",
    "mlx5_(user_.*|lag_.*|rx_hash_.*|ipsec_.*|.*_flags)",
];

/// Name patterns of the C enumerators and macros to generate in Rust.
const CONSTANTS: [&str; 9] = [
    "IB_USER_VERBS_.*",
    "IB_UVERBS_.*",
    "UVERBS_.*",
    "RDMA_.*",
    "ib_uverbs_.*",
    "MLX5_(IB|USER|RX_HASH|CQE|CQ|OPCODE|WQE|RCV|SND|SEND|INLINE|ETH|INVALID|LIB|DB)_.*",
    "MLX5_(TM|MMO|LSO|GET|EXTENDED|BSF|BITS|IPOIB|TLS|SRQ|QP)_.*",
    "MLX5DV_(WQE|QP|CQE|FLOW)_.*",
    "IB_(PORT|FLOW|DEVICE|USER|QPT|RATE|MTU)_.*",
];

fn main() {
    let includes: String = HEADERS
        .iter()
        .map(|header| format!("#include <{header}>\n"))
        .collect();
    let mut builder = bindgen_current::Builder::default()
        .header_contents("abi.h", &includes)
        .derive_default(true)
        .derive_debug(true)
        .derive_copy(true)
        .prepend_enum_name(false)
        .generate_comments(false)
        // `mlx5_wqe_ctrl_seg` is packed and aligned to 4. Rust has no such struct, and bindgen
        // makes it `packed(4)`, four bytes too long. Without the alignment attribute the struct is
        // plainly packed, and every offset is right. Nothing else in these headers uses this
        // spelling of the attribute.
        .clang_arg("-D__aligned__(n)=__unused__")
        // The compiler of another target has other system directories.
        .clang_arg("-idirafter/usr/include")
        // The compiler asserts the offset of each field.
        .layout_tests(true)
        .merge_extern_blocks(true)
        // A minimal toolchain may lack rustfmt; the build must not need it.
        .formatter(bindgen_current::Formatter::None)
        .ignore_functions();
    for pattern in TYPES {
        builder = builder.allowlist_type(pattern);
    }
    for pattern in CONSTANTS {
        builder = builder.allowlist_var(pattern);
    }
    let bindings = builder.generate().unwrap_or_else(|error| {
        panic!(
            "cannot generate bindings for the verbs headers: {error}\n\
             on Debian and Ubuntu: apt install libibverbs-dev linux-libc-dev libclang-dev"
        )
    });
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    bindings
        .write_to_file(out.join("abi.rs"))
        .expect("OUT_DIR is writable");
    println!("cargo::rerun-if-changed=build.rs");
}
