//! Tests of capturing: frames on the wire against frames in the files and lines of the ledger.

mod card_losses;
mod device_loss;
mod fanout;
mod faults;
mod fcs;
mod frame_types;
mod interface;
mod isolation;
mod live;
mod long_filters;
mod other_cards;
mod pipeline;
mod ports;
mod replay;
mod rss_command;
mod stamps;
mod statistics;
mod steering;
mod tcpdump;
mod visibility;
mod wq_flags;
mod xdp;
