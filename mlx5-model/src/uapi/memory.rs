//! Protection domains, memory regions and windows, address handles.

use std::mem::size_of;

use crate::abi::*;
use crate::device::memory::check_region;
use crate::device::nic::Session;
use crate::device::state::{InPd, Mr, Pd};
use crate::objects::number;
use crate::process::Errno;

use super::Request;

/// `IB_MR_REREG_*`, which no uAPI header names.
const REREG_TRANSLATION: u32 = 1 << 0;
const REREG_PD: u32 = 1 << 1;
const REREG_ACCESS: u32 = 1 << 2;
/// `IB_MW_TYPE_1` and `_2`.
const MW_TYPES: [u8; 2] = [1, 2];

/// ALLOC_PD.
pub fn alloc_pd(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let handle = session
        .lock()
        .pds
        .insert(session.context(), Pd::default())?;
    request.reply(&ib_uverbs_alloc_pd_resp {
        pd_handle: handle,
        ..Default::default()
    })?;
    request.reply_driver(&mlx5_ib_alloc_pd_resp {
        pdn: number(handle),
    })
}

/// DEALLOC_PD.
pub fn dealloc_pd(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_dealloc_pd = request.core()?;
    let mut state = session.lock();
    let index = state.pds.find(command.pd_handle, session.context())?;
    if state.pds.at(index).is_some_and(|pd| pd.users > 0) {
        return Err(libc::EBUSY);
    }
    state.pds.remove(index);
    Ok(())
}

/// REG_MR.
pub fn reg_mr(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_reg_mr = request.core()?;
    // Before the lock: faulting in gigabytes takes long, and the NIC goes on meanwhile.
    check_region(
        command.access_flags,
        command.start,
        command.length,
        command.hca_va,
    )?;
    let mut state = session.lock();
    let pd = state.pds.find(command.pd_handle, session.context())?;
    let region = state.rings.regions.register(
        pd,
        command.access_flags,
        command.start,
        command.length,
        command.hca_va,
    )?;
    let handle = state.mrs.insert(
        session.context(),
        Mr {
            lkey: region.lkey,
            pd,
        },
    );
    if handle.is_err() {
        state.rings.regions.remove(region.lkey);
    } else {
        state.use_pd(command.pd_handle, session.context())?;
    }
    drop(state);
    request.reply(&ib_uverbs_reg_mr_resp {
        mr_handle: handle?,
        lkey: region.lkey,
        rkey: region.lkey,
        ..Default::default()
    })
}

/// REREG_MR.
pub fn rereg_mr(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_rereg_mr = request.core()?;
    let flags = command.flags;
    if flags == 0 || flags & !(REREG_TRANSLATION | REREG_PD | REREG_ACCESS) != 0 {
        return Err(libc::EINVAL);
    }
    let has = |flag: u32| flags & flag != 0;
    let mut state = session.lock();
    let index = state.mrs.find(command.mr_handle, session.context())?;
    let (lkey, old_pd) = state
        .mrs
        .at(index)
        .map(|mr| (mr.lkey, mr.pd))
        .ok_or(libc::EINVAL)?;
    let pd = has(REREG_PD)
        .then(|| state.pds.find(command.pd_handle, session.context()))
        .transpose()?;
    let range = has(REREG_TRANSLATION).then_some((command.start, command.length, command.hca_va));
    let access = has(REREG_ACCESS).then_some(command.access_flags);
    state.rings.regions.change(lkey, pd, access, range)?;
    if let Some(pd) = pd {
        state.use_pd(command.pd_handle, session.context())?;
        state.leave_pd(old_pd);
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

/// DEREG_MR.
pub fn dereg_mr(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_dereg_mr = request.core()?;
    let mut state = session.lock();
    let index = state.mrs.find(command.mr_handle, session.context())?;
    state.remove_mr(index);
    Ok(())
}

/// ALLOC_MW. Nothing here reads or writes through a window, so it only has to exist.
pub fn alloc_mw(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_alloc_mw = request.core()?;
    if !MW_TYPES.contains(&command.mw_type) {
        return Err(libc::EINVAL);
    }
    let driver: mlx5_ib_alloc_mw = request.driver(0)?;
    if driver.comp_mask != 0 || driver.reserved1 != 0 || driver.reserved2 != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    let mut state = session.lock();
    let pd = state.use_pd(command.pd_handle, session.context())?;
    let handle = state.mws.insert(session.context(), InPd { pd });
    if handle.is_err() {
        state.leave_pd(pd);
    }
    let mw_handle = handle?;
    drop(state);
    let rkey = number(mw_handle) << 8;
    request.reply(&ib_uverbs_alloc_mw_resp {
        mw_handle,
        rkey,
        ..Default::default()
    })
}

/// DEALLOC_MW.
pub fn dealloc_mw(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_dealloc_mw = request.core()?;
    let mut state = session.lock();
    let index = state.mws.find(command.mw_handle, session.context())?;
    if let Some(mw) = state.mws.remove(index) {
        state.leave_pd(mw.pd);
    }
    Ok(())
}

/// OPEN_XRCD, CLOSE_XRCD: the device has no XRC, and says so.
pub fn no_xrcd(_: &Session, _: &Request<'_>) -> Result<(), Errno> {
    Err(libc::EOPNOTSUPP)
}

/// CREATE_AH.
pub fn create_ah(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_create_ah = request.core()?;
    let mut state = session.lock();
    state.port_index(u32::from(command.attr.port_num))?;
    // RoCE has no addresses but global ones.
    if command.attr.is_global == 0 || u32::from(command.attr.grh.sgid_index) >= super::context::GIDS
    {
        return Err(libc::EINVAL);
    }
    let pd = state.use_pd(command.pd_handle, session.context())?;
    let handle = state.ahs.insert(session.context(), InPd { pd });
    if handle.is_err() {
        state.leave_pd(pd);
    }
    let ah_handle = handle?;
    drop(state);
    request.reply(&ib_uverbs_create_ah_resp {
        ah_handle,
        ..Default::default()
    })?;
    let response_length = request.driver_room::<mlx5_ib_create_ah_resp>();
    if (response_length as usize) < size_of::<u32>() {
        return Ok(());
    }
    let dmac = destination(&command.attr.grh.dgid);
    request.reply_driver(&mlx5_ib_create_ah_resp {
        response_length,
        dmac,
        reserved: [0; 6],
    })
}

/// The MAC address that a GID leads to: a group's, that in a link-local address, or that in an
/// IPv4-mapped one, made up, since there is no neighbour to ask.
fn destination(gid: &[u8; 16]) -> [u8; 6] {
    match *gid {
        [0xff, .., a, b, c, d] => [0x33, 0x33, a, b, c, d],
        [0xfe, 0x80, _, _, _, _, _, _, a, b, c, _, _, d, e, f] => [a ^ 2, b, c, d, e, f],
        [.., a, b, c, d] => [2, 0, a, b, c, d],
    }
}

/// DESTROY_AH.
pub fn destroy_ah(session: &Session, request: &Request<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_destroy_ah = request.core()?;
    let mut state = session.lock();
    let index = state.ahs.find(command.ah_handle, session.context())?;
    if let Some(ah) = state.ahs.remove(index) {
        state.leave_pd(ah.pd);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn gids_lead_to_addresses() {
        let mut gid = [0; 16];
        gid[0] = 0xff;
        gid[15] = 7;
        assert_eq!(super::destination(&gid), [0x33, 0x33, 0, 0, 0, 7]);
        let link_local = [
            0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x0e, 0x42, 0xa1, 0xff, 0xfe, 1, 2, 3,
        ];
        assert_eq!(super::destination(&link_local), [0x0c, 0x42, 0xa1, 1, 2, 3]);
    }
}
