//! Kernel drivers of RDMA devices that lack a verb although the device's capabilities promise it.
//!
//! May import: nothing beyond this folder.

use std::{fs, path::Path};

/// Returns the verb or feature that the kernel driver of an RDMA device lacks for a capture
/// although the device's capabilities promise it; `None` if the driver is not known to lack one.
/// `sysfs` is `/sys`.
pub(super) fn lacks(sysfs: &Path, device: &str) -> Option<&'static str> {
    Some(match driver(sysfs, device)?.as_str() {
        // `mlx4_ib_create_rwq_ind_table` of drivers/infiniband/hw/mlx4/qp.c: the WQs of a table
        // have consecutive numbers. A capture's tables repeat WQs.
        "mlx4_core" => {
            "indirection tables in which a WQ has several entries (mlx4_ib accepts consecutive WQs only)"
        }
        // `mana_ib_modify_wq` of drivers/infiniband/hw/mana/wq.c returns EOPNOTSUPP, and
        // `mana_ib_dev_ops` of device.c has no create_flow.
        "mana" => "ibv_modify_wq and ibv_create_flow (mana_ib)",
        // `bnxt_re_create_flow` of drivers/infiniband/hw/bnxt_re/ib_verbs.c.
        "bnxt_en" => "rules other than one that mirrors RoCE frames to a plain QP (bnxt_re)",
        _ => return None,
    })
}

/// Returns `true` if the device's kernel driver has one sniffer rule, which mirrors RoCE frames to a
/// RAW_PACKET QP (`bnxt_re_create_flow` of drivers/infiniband/hw/bnxt_re/ib_verbs.c).
pub(super) fn mirrors_roce(sysfs: &Path, device: &str) -> bool {
    driver(sysfs, device).is_some_and(|it| it == "bnxt_en")
}

/// Returns the name of the kernel driver of an RDMA device's PCI function; `None` if unknown.
fn driver(sysfs: &Path, device: &str) -> Option<String> {
    let link = sysfs.join(format!("class/infiniband/{device}/device/driver"));
    let driver = fs::read_link(link).ok()?;
    Some(driver.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn drivers_without_a_needed_verb_are_refused_with_a_reason() {
        let root = tempfile::tempdir().expect("temporary directory");
        for (driver, reason) in [
            ("mlx4_core", Some("indirection tables")),
            ("mana", Some("ibv_modify_wq and ibv_create_flow")),
            ("bnxt_en", Some("RoCE")),
            ("mlx5_core", None),
        ] {
            let device = root
                .path()
                .join(format!("class/infiniband/{driver}/device"));
            fs::create_dir_all(&device).expect("create directory");
            let to = Path::new("../../../../bus/pci/drivers").join(driver);
            symlink(to, device.join("driver")).expect("create symlink");
            let lacks = lacks(root.path(), driver).unwrap_or_default();
            assert_eq!(lacks.is_empty(), reason.is_none(), "{driver}: {lacks}");
            assert!(
                lacks.contains(reason.unwrap_or_default()),
                "{driver}: {lacks}"
            );
            let mirrors = mirrors_roce(root.path(), driver);
            assert_eq!(mirrors, driver == "bnxt_en", "{driver}");
        }
        assert_eq!(lacks(root.path(), "none"), None);
    }
}
