//! What lies between worker and broker: a firewall that drops packets, and a proxy that cuts
//! connections or lets through only what is not a channel's.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const IPTABLES: &str = "/usr/sbin/iptables";

/// Why no packet can be dropped here.
pub(crate) fn missing() -> Option<String> {
    match Command::new(IPTABLES).args(["-w", "-S", "INPUT"]).output() {
        Err(error) => Some(format!("{IPTABLES}: {error}")),
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Some(format!("{IPTABLES} needs root: {}", said.lines().next().unwrap_or_default()))
        }
    }
}

/// No packet to or from a port gets through, until this is dropped.
pub(crate) struct Silence(u16);

impl Silence {
    pub(crate) fn of(port: u16) -> Silence {
        let silence = Silence(port);
        silence.rules("-I").expect("iptables, and root");
        silence
    }

    fn rules(&self, action: &str) -> io::Result<()> {
        let port = self.0.to_string();
        for side in ["--dport", "--sport"] {
            let rule = ["-w", action, "INPUT", "-i", "lo", "-p", "tcp", side, &port, "-j", "DROP"];
            let status = Command::new(IPTABLES).args(rule).status()?;
            if !status.success() {
                return Err(io::Error::other(format!("iptables {action}: {status}")));
            }
        }
        Ok(())
    }
}

impl Drop for Silence {
    fn drop(&mut self) {
        let _already_failing = self.rules("-D");
    }
}

/// What a proxy lets through of a new connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Let {
    Everything,
    /// The handshake and the heartbeats: frames of channel 0.
    ConnectionsOnly,
}

pub(crate) struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    channels: AtomicBool,
    connections: AtomicUsize,
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    pub(crate) fn to(broker: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            channels: AtomicBool::new(true),
            connections: AtomicUsize::new(0),
            open: Mutex::new(Vec::new()),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", broker)) else { continue };
                accepting.join(client, server).unwrap();
            }
        });
        Proxy { port, shared }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn cut_and_then(&self, allowed: Let) {
        self.shared.channels.store(allowed == Let::Everything, Ordering::SeqCst);
        self.shared.connections.store(0, Ordering::SeqCst);
        for stream in self.shared.open.lock().unwrap().drain(..) {
            let _already_closed = stream.shutdown(Shutdown::Both);
        }
    }

    pub(crate) fn connected_again(&self) -> bool {
        self.shared.connections.load(Ordering::SeqCst) > 0
    }
}

impl Shared {
    fn join(&self, mut client: TcpStream, mut server: TcpStream) -> io::Result<()> {
        let channels = self.channels.load(Ordering::SeqCst);
        self.connections.fetch_add(1, Ordering::SeqCst);
        self.open.lock().unwrap().extend([client.try_clone()?, server.try_clone()?]);
        let (mut answers, mut answered) = (server.try_clone()?, client.try_clone()?);
        std::thread::spawn(move || io::copy(&mut answers, &mut answered));
        std::thread::spawn(move || match channels {
            true => io::copy(&mut client, &mut server).map(|_| ()),
            false => pass_channel_zero(&mut client, &mut server),
        });
        Ok(())
    }
}

/// After the protocol header: type, channel, size, payload, and one byte that ends the frame.
fn pass_channel_zero(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut header = [0; 8];
    from.read_exact(&mut header)?;
    to.write_all(&header)?;
    loop {
        let mut frame = vec![0; 7];
        from.read_exact(&mut frame)?;
        let size = u32::from_be_bytes([frame[3], frame[4], frame[5], frame[6]]) as usize;
        frame.resize(7 + size + 1, 0);
        from.read_exact(&mut frame[7..])?;
        if frame[1..3] == [0, 0] {
            to.write_all(&frame)?;
        }
    }
}
