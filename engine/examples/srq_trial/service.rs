//! A service with nothing behind it that could be captured.

use crate::Outcome;
use serde_json::{Value, json};
use std::{
    fs,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};
use wqcap_engine::{
    config::Config,
    control::{
        protocol::{CaptureStatus, Changed, Command, Refusal, Stats},
        server::{Backend, ChangeReply, ControlServer},
    },
    device,
};

/// Says yes to everything and remembers the filter.
struct Nothing {
    filter: Mutex<String>,
    over: mpsc::Sender<ChangeReply>,
}

impl Backend for Nothing {
    fn status(&self) -> CaptureStatus {
        CaptureStatus {
            pid: std::process::id(),
            filter: self.filter.lock().map(|it| it.clone()).unwrap_or_default(),
            ..CaptureStatus::default()
        }
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }

    fn devices(&self) -> Result<Value, Refusal> {
        Ok(json!(device::list().unwrap_or_default()))
    }

    /// A hundred kilobytes: an answer of many parts.
    fn plan(&self) -> Result<Value, Refusal> {
        Ok(json!(
            (0..10_000).map(|i| i + 1_000_000).collect::<Vec<u32>>()
        ))
    }

    fn change(&self, command: &Command, reply: ChangeReply) {
        if let (Command::Filter { expression }, Ok(mut filter)) = (command, self.filter.lock()) {
            filter.clone_from(expression);
        }
        if matches!(command, Command::Shutdown) {
            let _ = self.over.send(reply);
            return;
        }
        reply.send(Ok(Changed {
            changed: true,
            now: "done".into(),
        }));
    }
}

/// Serves until somebody says `shutdown`.
pub fn serve(config: &str) -> Outcome {
    let config = Config::parse(&fs::read_to_string(config)?)?;
    let control = config.control.ok_or("the configuration has no [control]")?;
    let (over, ended) = mpsc::channel();
    let backend = Nothing {
        filter: Mutex::default(),
        over,
    };
    let service = ControlServer::start(&control, Arc::new(backend), &[])?;
    println!("serving");
    ended.recv()?.send(Ok(Changed {
        changed: true,
        now: "ends".into(),
    }));
    // What was told is on its way before the service is taken down.
    std::thread::sleep(Duration::from_millis(50));
    drop(service);
    println!("ended");
    Ok(())
}
