//! Commands for address handles. They are objects only: the model sends nothing to an address.

use crate::abi::*;
use crate::device::object::PdDependent;
use crate::process::Errno;

use super::{UverbsFile, UverbsRequest};

pub fn create(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_create_ah = request.core()?;
    let mut state = file.lock();
    state.port_index(u32::from(command.attr.port_num))?;
    // RoCE has only global addresses.
    let gids = file.settings().gids();
    if command.attr.is_global == 0 || usize::from(command.attr.grh.sgid_index) >= gids {
        return Err(libc::EINVAL);
    }
    let pd = state.pds.find(command.pd_handle, file.context())?;
    let ah_handle = state.ahs.insert(file.context(), PdDependent { pd })?;
    state.pds.add_user(pd);
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

/// Returns the MAC address for a GID: the group's MAC address, or the one in a link-local address.
/// For an IPv4-mapped address it is made up, because the model has no neighbour table.
fn destination(gid: &[u8; 16]) -> [u8; 6] {
    match *gid {
        [0xff, .., a, b, c, d] => [0x33, 0x33, a, b, c, d],
        [0xfe, 0x80, _, _, _, _, _, _, a, b, c, _, _, d, e, f] => [a ^ 2, b, c, d, e, f],
        [.., a, b, c, d] => [2, 0, a, b, c, d],
    }
}

pub fn destroy(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_destroy_ah = request.core()?;
    let mut state = file.lock();
    let index = state.ahs.find(command.ah_handle, file.context())?;
    if let Some(ah) = state.ahs.remove(index) {
        state.pds.remove_user(ah.pd);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn gids_map_to_mac_addresses() {
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
