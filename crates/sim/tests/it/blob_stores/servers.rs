//! An S3 server on loopback that does not keep its promises, s3s-fs; it ends with the test that started it.
//!
//! Leaves to others: moto, which keeps them (`logmill_sim::moto`), and Ceph, which `tools/ceph.sh` starts.

use std::path::Path;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use logmill_io::Tasks;
use tokio::net::TcpListener;

/// Serves the folders under `root` as buckets until `server` is dropped; gives the endpoint.
pub(super) async fn serve_s3s_fs(root: &Path, server: &mut Tasks<()>) -> String {
    let files = s3s_fs::FileSystem::new(root).expect("a folder of buckets");
    let mut service = s3s::service::S3ServiceBuilder::new(files);
    service.set_auth(s3s::auth::SimpleAuth::from_single("key", "secret"));
    let service = service.build();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    server.spawn(async move {
        let mut connections = Tasks::new();
        while let Ok((socket, _)) = listener.accept().await {
            let service = service.clone();
            connections.spawn(async move {
                let http = Builder::new(TokioExecutor::new());
                // A client that hangs up is no failure of the server.
                let _ = http.serve_connection(TokioIo::new(socket), service).await;
            });
        }
    });
    format!("http://{address}")
}
