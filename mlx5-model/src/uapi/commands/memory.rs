//! Commands for protection domains, memory regions and windows.

use crate::abi::*;
use crate::device::memory::check_region;
use crate::device::object::{MrObject, PdDependent, PdObject};
use crate::handles::number;
use crate::process::{Errno, refuse_if};

use super::{UverbsFile, UverbsRequest};

/// `IB_MR_REREG_*` flags of REREG_MR, which no uAPI header defines.
const REREG_TRANSLATION: u32 = 1 << 0;
const REREG_PD: u32 = 1 << 1;
const REREG_ACCESS: u32 = 1 << 2;
/// Memory window types `IB_MW_TYPE_1` and `IB_MW_TYPE_2`.
const MW_TYPES: [u8; 2] = [1, 2];

pub fn alloc_pd(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let handle = file.lock().pds.insert(file.context(), PdObject)?;
    request.reply(&ib_uverbs_alloc_pd_resp {
        pd_handle: handle,
        ..Default::default()
    })?;
    request.reply_driver(&mlx5_ib_alloc_pd_resp {
        pdn: number(handle),
    })
}

pub fn dealloc_pd(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_dealloc_pd = request.core()?;
    let mut state = file.lock();
    let index = state.pds.find_unused(command.pd_handle, file.context())?;
    state.pds.remove(index);
    Ok(())
}

pub fn reg_mr(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_reg_mr = request.core()?;
    // Before the lock: faulting in gigabytes takes long, and the NIC must continue meanwhile.
    check_region(
        command.access_flags,
        command.start,
        command.length,
        command.hca_va,
    )?;
    let mut state = file.lock();
    let pd = state.pds.find(command.pd_handle, file.context())?;
    let region = state.queues.regions.register(
        pd,
        command.access_flags,
        command.start,
        command.length,
        command.hca_va,
    )?;
    let lkey = region.lkey;
    let inserted = state.mrs.insert(file.context(), MrObject { lkey, pd });
    let mr_handle = inserted.inspect_err(|_| state.queues.regions.remove(lkey))?;
    state.pds.add_user(pd);
    drop(state);
    request.reply(&ib_uverbs_reg_mr_resp {
        mr_handle,
        lkey,
        rkey: lkey,
        ..Default::default()
    })
}

pub fn rereg_mr(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_rereg_mr = request.core()?;
    let flags = command.flags;
    if flags == 0 || flags & !(REREG_TRANSLATION | REREG_PD | REREG_ACCESS) != 0 {
        return Err(libc::EINVAL);
    }
    let has = |flag: u32| flags & flag != 0;
    let mut state = file.lock();
    let index = state.mrs.find(command.mr_handle, file.context())?;
    let (lkey, old_pd) = state
        .mrs
        .at(index)
        .map(|mr| (mr.lkey, mr.pd))
        .ok_or(libc::EINVAL)?;
    let pd = has(REREG_PD)
        .then(|| state.pds.find(command.pd_handle, file.context()))
        .transpose()?;
    let range = has(REREG_TRANSLATION).then_some((command.start, command.length, command.hca_va));
    let access = has(REREG_ACCESS).then_some(command.access_flags);
    state.queues.regions.change(lkey, pd, access, range)?;
    if let Some(pd) = pd {
        state.pds.add_user(pd);
        state.pds.remove_user(old_pd);
        if let Some(mr) = state.mrs.at_mut(index) {
            mr.pd = pd;
        }
    }
    drop(state);
    request.reply(&ib_uverbs_rereg_mr_resp {
        lkey,
        rkey: lkey,
        ..Default::default()
    })
}

pub fn dereg_mr(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_dereg_mr = request.core()?;
    let mut state = file.lock();
    let index = state.mrs.find(command.mr_handle, file.context())?;
    state.remove_mr(index);
    Ok(())
}

/// ALLOC_MW: creates a memory window, which is an object only: the model accesses no memory through
/// it.
pub fn alloc_mw(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_alloc_mw = request.core()?;
    refuse_if(!MW_TYPES.contains(&command.mw_type), libc::EINVAL)?;
    let driver: mlx5_ib_alloc_mw = request.driver(0)?;
    if driver.comp_mask != 0 || driver.reserved1 != 0 || driver.reserved2 != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let mut state = file.lock();
    let pd = state.pds.find(command.pd_handle, file.context())?;
    let mw_handle = state.mws.insert(file.context(), PdDependent { pd })?;
    state.pds.add_user(pd);
    drop(state);
    let rkey = number(mw_handle) << 8;
    request.reply(&ib_uverbs_alloc_mw_resp {
        mw_handle,
        rkey,
        ..Default::default()
    })
}

pub fn dealloc_mw(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_dealloc_mw = request.core()?;
    let mut state = file.lock();
    let index = state.mws.find(command.mw_handle, file.context())?;
    if let Some(mw) = state.mws.remove(index) {
        state.pds.remove_user(mw.pd);
    }
    Ok(())
}

/// OPEN_XRCD, CLOSE_XRCD: always fail, because the device has no XRC.
pub fn no_xrcd(_: &UverbsFile, _: &UverbsRequest<'_>) -> Result<(), Errno> {
    Err(libc::EOPNOTSUPP)
}
