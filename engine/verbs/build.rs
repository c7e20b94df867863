//! Generates bindings of libmlx5's direct verbs, which `rdma-sys` lacks, from the system's
//! `infiniband/mlx5dv.h`.

use std::path::PathBuf;

fn main() {
    let bindings = bindgen_current::Builder::default()
        .header_contents("direct.h", "#include <infiniband/mlx5dv.h>\n")
        // The compiler of another target has other system directories.
        .clang_arg("-idirafter/usr/include")
        .allowlist_function("mlx5dv_(init_obj|is_supported|query_device|create_cq|create_qp|create_wq|get_clock_info|set_context_attr)")
        .allowlist_type("mlx5dv_(ctx_allocators|set_ctx_attr_type|obj|cq|rwq|obj_type|clock_info|context|context_flags|context_comp_mask|qp_init_attr|qp_init_attr_mask|qp_create_flags|tunnel_offloads|wq_init_attr|wq_init_attr_mask|cq_init_attr|cq_init_attr_mask|cqe_comp_res_format)|mlx5_(cqe64|err_cqe|wqe_data_seg|wqe_srq_next_seg)")
        // Objects of libibverbs are passed only as pointers.
        .opaque_type("(ibv|verbs)_.*|mlx5dv_(qp|srq|dm|ah|pd|devx.*)")
        .derive_copy(true)
        .prepend_enum_name(false)
        .generate_comments(false)
        .layout_tests(false)
        .formatter(bindgen_current::Formatter::None)
        .generate()
        .expect("infiniband/mlx5dv.h (libibverbs-dev) and libclang are needed to build");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    bindings
        .write_to_file(out.join("direct.rs"))
        .expect("OUT_DIR is writable");
}
