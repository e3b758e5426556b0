//! moto, an S3 server in Python, for one test: correct, or with one guarantee of S3 broken.
//!
//! Guarantees: it listens only on loopback, on a free port, and ends with its handle. Leaves to others: having Python
//! (`tools/python.sh` installs moto).

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::paths::workspace_root;

/// A moto server that ends with the test.
#[derive(Debug)]
pub struct Moto {
    server: Child,
    address: String,
}

impl Moto {
    /// Starts it, without any bucket.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start() -> Self {
        Self::of(MOTO)
    }

    /// Starts one whose conditional puts lose races.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_racy() -> Self {
        Self::of(RACY_MOTO)
    }

    fn of(program: &str) -> Self {
        let mut server = Command::new(moto_python())
            .args(["-c", program, "-H", "127.0.0.1", "-p", "0"])
            .env("PYTHONUNBUFFERED", "1")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("moto_server starts");
        let log = BufReader::new(server.stderr.take().expect("its log"));
        let (sender, receiver) = mpsc::channel();
        // Read to the end: the server would block if the pipe were full.
        std::thread::spawn(move || {
            for line in log.lines().map_while(std::result::Result::ok) {
                if let Some((_, address)) = line.split_once("Running on http://") {
                    let _ = sender.send(address.trim().to_owned());
                }
            }
        });
        let address = receiver.recv_timeout(Duration::from_secs(120));
        if address.is_err() {
            server.kill().expect("it can be stopped");
        }
        Self { server, address: address.expect("moto_server says where it listens") }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Creates a bucket.
    ///
    /// # Panics
    /// If the server refuses.
    pub async fn create_bucket(&self, bucket: &str) {
        self.request("PUT", bucket, "200").await;
    }

    /// Deletes a bucket, which must be empty.
    ///
    /// # Panics
    /// If the server refuses.
    pub async fn delete_bucket(&self, bucket: &str) {
        self.request("DELETE", bucket, "204").await;
    }

    async fn request(&self, method: &str, bucket: &str, expected: &str) {
        let mut socket = TcpStream::connect(&self.address).await.expect("a connection");
        let request = format!(
            "{method} /{bucket} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.address
        );
        socket.write_all(request.as_bytes()).await.expect("the request is sent");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.expect("an answer");
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{answer}");
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// Starts moto with two of its defects fixed. It computes the ETag of an object from the file in which readers of the
/// object seek, without their lock, so that a reader of a new object may get only a part of it. And it checks whether
/// an object exists some time before it stores it, so that once in thousands of races two writers win.
const MOTO: &str = "
import sys
import threading
from moto.s3 import models
from moto.s3.responses import S3Response
etag = models.FakeKey.etag.fget
def locked(key):
    with key.lock:
        return etag(key)
models.FakeKey.etag = property(locked)
put = S3Response.put_object
puts = threading.Lock()
def one_by_one(response):
    with puts:
        return put(response)
S3Response.put_object = one_by_one
from moto.server import main
main(sys.argv[1:])
";

/// Starts moto with a pause between the existence check and the put, like a server in which the two are not atomic:
/// it answers 412 correctly only while there is a single writer.
const RACY_MOTO: &str = "
import sys
import time
from moto.s3 import models
put = models.S3Backend.put_object
def late(backend, *args, **kwargs):
    time.sleep(0.02)
    return put(backend, *args, **kwargs)
models.S3Backend.put_object = late
from moto.server import main
main(sys.argv[1:])
";

/// The Python that has moto; installs it on first use.
fn moto_python() -> PathBuf {
    let root = workspace_root();
    let program = root.join(".tools/venv/bin/python");
    let installed = Command::new(root.join("tools/python.sh")).status().expect("the script runs");
    assert!(installed.success() && program.exists(), "tools/python.sh installs moto");
    program
}
