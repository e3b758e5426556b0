//! The socket file: where it is, how it is made, and how it goes away.
//!
//! Guarantees: nobody but the owner can connect, from the first moment on: the mode is set between bind and
//! listen. A file left behind by a server that died is replaced, by whoever has the folder's lock and by nobody
//! else. A folder whose path is too long for a socket's address is reached through the folder's own handle.
//! Leaves to others: speaking.

use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use logmill_io::sql::DataFolder;
use tokio::net::{UnixListener, UnixSocket, UnixStream};

use crate::error::{Error, Result};

const NAME: &str = "control.sock";
/// The longest path in a socket's address: 108 bytes, one of them zero.
const ADDRESS_BYTES_MAX: usize = 107;
/// Clients that may wait to be accepted.
const BACKLOG: u32 = 64;

/// Where the socket of a folder is.
pub(super) fn path(folder: &Path) -> PathBuf {
    folder.join(NAME)
}

/// Listens in a folder that this process has.
#[expect(
    clippy::disallowed_methods,
    reason = "the socket file belongs to the server, not to a store"
)]
pub(super) fn listen(folder: &DataFolder) -> Result<UnixListener> {
    let path = path(folder.path());
    let failed = |doing| failed(doing, &path);
    // Nobody listens there: whoever did had the lock that we have now.
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed("replace")(error)),
        _ => {}
    }
    let address = Address::of(folder.path())?;
    let socket = UnixSocket::new_stream().map_err(failed("make"))?;
    socket.bind(&address.path).map_err(failed("bind"))?;
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(failed("protect"))?;
    socket.listen(BACKLOG).map_err(failed("listen on"))
}

/// Takes the file away when the server stops.
#[expect(
    clippy::disallowed_methods,
    reason = "the socket file belongs to the server, not to a store"
)]
pub(super) fn remove(folder: &Path) {
    // The next server would replace it anyway.
    let _ = std::fs::remove_file(path(folder));
}

/// Connects to the server of a folder.
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
                "its path has more than {ADDRESS_BYTES_MAX} bytes: use a shorter data folder"
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
