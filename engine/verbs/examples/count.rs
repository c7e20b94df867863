//! Counts the frames that a port receives in five seconds, with one WQ and only the verbs.
//!
//!     wqcap model --wire synth:pps=1000 -- target/debug/examples/count mlx5_0
//!
//! On a real NIC, run it without `wqcap model`, but with CAP_NET_RAW.
#![allow(unsafe_code)]

use std::{
    error::Error,
    ptr,
    time::{Duration, Instant},
};
use wqcap_rss::{key::RssKey, profile::HashFields};
use wqcap_verbs::{
    CompletionStamps, Context, Cq, CqAttr, Flow, FlowKind, FlowRule, FlowSpec, Mr, Pd, RssQp,
    RwqTable, Wq, WqAttr, WqState, memory::Region, sys,
};

/// Number of WRs in the ring, each with its own buffer.
const WRS: u32 = 512;
/// Size of the buffer of each WR in bytes.
const BUFFER: u32 = 2048;

/// Posts the receive WR of the buffer with the index `number`.
fn post(wq: &mut Wq, memory: &Mr, number: u64) -> Result<(), Box<dyn Error>> {
    let mut entry = sys::ibv_sge {
        addr: memory.memory().addr() as u64 + number * u64::from(BUFFER),
        length: BUFFER,
        lkey: memory.lkey(),
    };
    let mut wr = sys::ibv_recv_wr {
        wr_id: number,
        next: ptr::null_mut(),
        sg_list: &raw mut entry,
        num_sge: 1,
    };
    // SAFETY: the WR and its entry outlive the call; the buffer lies in the memory of the WQ, is
    // posted only when new or after its completion, and is not read.
    unsafe { wq.post(&raw mut wr) }.map_err(|errno| format!("ibv_post_wq_recv: errno {errno}"))?;
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).ok_or("usage: count DEVICE")?;
    let context = Context::open(&name)?;
    let pd = Pd::alloc(&context)?;
    let memory = Mr::register(&pd, Region::allocate((WRS * BUFFER) as usize, None)?)?;
    let cq_attr = CqAttr {
        entries: WRS,
        vector: 0,
        stamps: CompletionStamps::None,
        compression: None,
    };
    let mut cq = Cq::create(&context, cq_attr, None)?;
    let wq_attr = WqAttr {
        max_wr: WRS,
        max_sge: 1,
        flags: 0,
        striding: None,
    };
    let mut wq = Wq::create(&pd, &cq, &memory, wq_attr)?;
    // WRs posted before the WQ is ready are lost.
    wq.set_state(None, WqState::Ready)?;
    for number in 0..u64::from(WRS) {
        post(&mut wq, &memory, number)?;
    }
    let table = RwqTable::create(&context, [wq.handle()])?;
    let qp = RssQp::create(&pd, &table, &RssKey::MICROSOFT, HashFields::NONE)?;
    let everything = FlowRule {
        port: 1,
        kind: FlowKind::Normal,
        priority: 0,
        specs: vec![FlowSpec::ETHERNET],
    };
    let _rule = Flow::create(&qp, &everything)?;

    let (mut frames, mut bytes) = (0u64, 0u64);
    let end = Instant::now() + Duration::from_secs(5);
    let mut done = Vec::new();
    while Instant::now() < end {
        if let Some(mut completions) = cq.poll().map_err(|e| e.to_string())? {
            while let Some(it) = completions.next().map_err(|e| e.to_string())? {
                (frames, bytes) = (frames + 1, bytes + u64::from(it.byte_len));
                done.push(it.wr_id);
            }
        }
        for number in done.drain(..) {
            post(&mut wq, &memory, number)?;
        }
    }
    println!("{frames} frames, {bytes} bytes");
    Ok(())
}
