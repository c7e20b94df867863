//! Control service without a capture.

use crate::Outcome;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    fs,
    sync::{Arc, Mutex, mpsc},
};
use wqcap_control::{
    protocol::{CaptureStatus, Changed, Command, Refusal, Stats},
    server::{Backend, ChangeReply, ControlConfig, ControlServer, ControlSocket},
};

#[derive(Deserialize)]
struct Config {
    control: ControlConfig,
}

/// Backend that accepts every change and stores the filter.
struct NoCapture {
    filter: Mutex<String>,
    shutdown: mpsc::Sender<ChangeReply>,
}

impl Backend for NoCapture {
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
        Ok(json!([]))
    }

    /// Returns about 80 kB of JSON, an answer of many fragments.
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
            let _ = self.shutdown.send(reply);
            return;
        }
        reply.send(Ok(Changed {
            changed: true,
            now: "done".into(),
            ..Changed::default()
        }));
    }
}

/// Serves control clients until `shutdown`.
pub fn serve(config: &str) -> Outcome {
    let config: Config = toml::from_str(&fs::read_to_string(config)?)?;
    let (shutdown, requested) = mpsc::channel();
    let backend = NoCapture {
        filter: Mutex::default(),
        shutdown,
    };
    let server = ControlServer::start_on(
        ControlSocket::bind(&config.control)?,
        &config.control,
        Arc::new(backend),
        &[],
    )?;
    println!("serving");
    requested.recv()?.send(Ok(Changed {
        changed: true,
        now: "ends".into(),
        ..Changed::default()
    }));
    // The server sends this answer before it ends.
    drop(server);
    println!("ended");
    Ok(())
}
