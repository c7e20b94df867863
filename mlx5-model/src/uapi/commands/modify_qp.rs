//! MODIFY_QP: state transitions of RAW_PACKET QPs.

use crate::abi::*;
use crate::device::object::{QpBody, QpObject, QpState};
use crate::device::rq::RqState;
use crate::device::sq::SqState;
use crate::device::state::DeviceState;
use crate::process::{Errno, refuse_if};

use super::{UverbsFile, UverbsRequest};

/// Bits of `enum ib_qp_attr_mask` for RAW_PACKET QPs; no uAPI header defines them.
mod attr {
    pub const STATE: u32 = 1 << 0;
    pub const CURRENT_STATE: u32 = 1 << 1;
    pub const PORT: u32 = 1 << 5;
    pub const RATE_LIMIT: u32 = 1 << 25;
}

pub fn modify(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_modify_qp = request.core()?;
    refuse_if(command.attr_mask & attr::RATE_LIMIT != 0, libc::EOPNOTSUPP)?;
    change(file, &command)
}

/// EX_MODIFY_QP: changes a QP as MODIFY_QP does; rate limits, its only extension, are refused.
pub fn modify_ex(file: &UverbsFile, request: &UverbsRequest<'_>) -> Result<(), Errno> {
    let command: ib_uverbs_ex_modify_qp = request.core()?;
    if command.base.attr_mask & attr::RATE_LIMIT != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    change(file, &command.base)?;
    request.reply(&ib_uverbs_ex_modify_qp_resp {
        comp_mask: 0,
        response_length: request.room::<ib_uverbs_ex_modify_qp_resp>(),
    })
}

fn state_of(number: u8) -> Result<QpState, Errno> {
    use QpState::*;
    [
        Reset,
        Init,
        ReadyToReceive,
        ReadyToSend,
        SendQueueDrained,
        SendQueueError,
        Error,
    ]
    .get(usize::from(number))
    .copied()
    .ok_or(libc::EINVAL)
}

/// Returns `true` if `ib_modify_qp_is_ok` allows a RAW_PACKET QP the state transition with these
/// attributes.
fn is_allowed(from: QpState, to: QpState, mask: u32) -> bool {
    use QpState::*;
    let exists = match from {
        Reset => matches!(to, Reset | Init),
        Init => matches!(to, Reset | Error | Init | ReadyToReceive),
        ReadyToReceive => matches!(to, Reset | Error | ReadyToSend),
        ReadyToSend => matches!(to, Reset | Error | ReadyToSend | SendQueueDrained),
        SendQueueDrained => matches!(to, Reset | Error | ReadyToSend | SendQueueDrained),
        SendQueueError => matches!(to, Reset | Error | ReadyToSend),
        Error => matches!(to, Reset | Error),
    };
    let required = if (from, to) == (Reset, Init) {
        attr::PORT
    } else {
        0
    };
    // RAW_PACKET QPs accept the current state in no transition.
    exists && mask & required == required && mask & !(required | attr::STATE) == 0
}

fn change(file: &UverbsFile, command: &ib_uverbs_modify_qp) -> Result<(), Errno> {
    let mask = command.attr_mask;
    let mut state = file.lock();
    let index = state.qps.find(command.qp_handle, file.context())?;
    if mask & attr::PORT != 0 {
        state.port_index(u32::from(command.port_num))?;
    }
    let (from, to, rq, sq) = {
        let qp = state.qps.at(index).ok_or(libc::EINVAL)?;
        // An RSS QP has no state.
        let QpBody::Raw { rq, sq, .. } = qp.body else {
            return Err(libc::EOPNOTSUPP);
        };
        let from = current_state(&state, qp);
        let current = if mask & attr::CURRENT_STATE != 0 {
            state_of(command.cur_qp_state)?
        } else {
            from
        };
        let to = if mask & attr::STATE != 0 {
            state_of(command.qp_state)?
        } else {
            current
        };
        if current != from || !is_allowed(from, to, mask & !attr::CURRENT_STATE) {
            return Err(libc::EINVAL);
        }
        (from, to, rq, sq)
    };
    if let Some(qp) = state.qps.at_mut(index) {
        qp.state = to;
        if mask & attr::PORT != 0 {
            qp.port = command.port_num;
        }
        if to == QpState::Reset {
            qp.port = 0;
        }
    }
    if let Some((rq, cq)) = rq.and_then(|rq| state.queues.receive_queue(rq)) {
        // The receive queue is ready from INIT on; libmlx5 withholds its doorbell until RTR.
        let next = match to {
            QpState::Reset => RqState::Reset,
            QpState::Error => RqState::Error,
            _ => RqState::Ready,
        };
        if next != rq.state() {
            rq.set_state(next, cq);
        }
    }
    if let Some((sq, cq)) = sq.and_then(|sq| state.queues.send_queue(sq)) {
        let next = match to {
            QpState::ReadyToSend => SqState::Ready,
            QpState::Error => SqState::Error,
            _ => SqState::Idle,
        };
        if mask & attr::PORT != 0 {
            sq.port = command.port_num;
        }
        sq.set_state(next, to == QpState::Reset || from == QpState::Reset, cq);
    }
    Ok(())
}

/// Returns the QP's state as the states of its two queues define it (`sqrq_state_to_qp_state` of
/// the driver).
pub fn current_state(state: &DeviceState, qp: &QpObject) -> QpState {
    let QpBody::Raw { rq, sq, .. } = qp.body else {
        return qp.state;
    };
    let rq_failed = rq
        .and_then(|rq| state.queues.rqs.at(rq))
        .is_some_and(|rq| rq.state() == RqState::Error);
    let sq_failed = sq
        .and_then(|sq| state.queues.sqs.at(sq))
        .is_some_and(|sq| sq.state() == SqState::Error);
    match (rq_failed, sq_failed) {
        (true, _) => QpState::Error,
        (false, true) if rq.is_none() => QpState::Error,
        (false, true) => QpState::SendQueueError,
        (false, false) => qp.state,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raw_qp_has_the_transitions_of_the_kernel() {
        use QpState::*;
        assert!(is_allowed(Reset, Init, attr::STATE | attr::PORT));
        assert!(!is_allowed(Reset, Init, attr::STATE), "without a port");
        assert!(!is_allowed(Reset, ReadyToReceive, attr::STATE));
        assert!(!is_allowed(Reset, Error, attr::STATE));
        assert!(is_allowed(Init, ReadyToReceive, attr::STATE));
        assert!(!is_allowed(Init, ReadyToReceive, attr::STATE | attr::PORT));
        assert!(is_allowed(ReadyToReceive, ReadyToSend, attr::STATE));
        assert!(is_allowed(Error, Reset, attr::STATE));
        assert!(!is_allowed(Error, ReadyToSend, attr::STATE));
    }
}
