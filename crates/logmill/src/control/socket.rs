//! The socket file: its path, creation and removal.
//!
//! Guarantees: only the owner can connect, because the mode is set between bind and listen. A file left behind by a
//! dead server is replaced only by the process that holds the folder's lock. If the path is too long for a socket
//! address, the socket is reached through a handle to the folder. Leaves to others: the protocol.

use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use logmill_io::sql::DataFolder;
use tokio::net::{UnixListener, UnixSocket, UnixStream};

use crate::error::{Error, Result};

const NAME: &str = "control.sock";
/// Maximum path length in a socket address: 108 bytes including the terminating zero.
const ADDRESS_BYTES_MAX: usize = 107;
/// Maximum number of clients that wait to be accepted.
const BACKLOG: u32 = 64;

pub(super) fn path(folder: &Path) -> PathBuf {
    folder.join(NAME)
}

/// Listens in a folder whose lock this process holds.
#[expect(
    clippy::disallowed_methods,
    reason = "the socket file belongs to the server, not to a store"
)]
pub(super) fn listen(folder: &DataFolder) -> Result<UnixListener> {
    let path = path(folder.path());
    let failed = |doing| failed(doing, &path);
    // No process listens there: a listener would hold the lock that we hold now.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed("replace")(error)),
        _ => {}
    }
    let address = Address::of(folder.path())?;
    let socket = UnixSocket::new_stream().map_err(failed("create"))?;
    socket.bind(&address.path).map_err(failed("bind"))?;
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(failed("protect"))?;
    socket.listen(BACKLOG).map_err(failed("listen on"))
}

/// Removes the file when the server stops.
#[expect(
    clippy::disallowed_methods,
    reason = "the socket file belongs to the server, not to a store"
)]
pub(super) fn remove(folder: &Path) {
    // On failure the next server replaces it.
    let _ = std::fs::remove_file(path(folder));
}

pub(super) async fn connect(folder: &Path) -> Result<UnixStream> {
    let address = Address::of(folder)?;
    UnixStream::connect(&address.path).await.map_err(failed("connect to", &path(folder)))
}

/// A path to the socket that fits into an address.
struct Address {
    path: PathBuf,
    /// The path goes through this handle.
    _folder: Option<File>,
}

impl Address {
    fn of(folder: &Path) -> Result<Self> {
        let path = path(folder);
        if path.as_os_str().len() <= ADDRESS_BYTES_MAX {
            return Ok(Self { path, _folder: None });
        }
        #[expect(
            clippy::disallowed_methods,
            reason = "a handle to name the folder by, nothing is read"
        )]
        let open = File::open(folder).map_err(failed("find the folder of", &path))?;
        let handles = Path::new("/proc/self/fd");
        if !handles.exists() {
            let why = format!(
                "its path is longer than {ADDRESS_BYTES_MAX} bytes: use a data folder with a shorter path"
            );
            return Err(failed("reach", &path)(std::io::Error::new(
                ErrorKind::InvalidFilename,
                why,
            )));
        }
        let through = handles.join(open.as_raw_fd().to_string()).join(NAME);
        Ok(Self { path: through, _folder: Some(open) })
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_path_buf();
    move |source| Error::Socket { doing, path, source }
}
