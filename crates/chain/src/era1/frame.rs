//! Framed Snappy, the compression of era1 entries.
//!
//! Guarantees: the output never exceeds the given size, whatever the input; the checksum of each frame is
//! verified. Leaves to others: what the bytes mean.

use snap::raw;

/// Maximum decompressed size of a frame.
const FRAME_BYTES_MAX: usize = 65_536;
/// Kinds of frames.
const COMPRESSED: u8 = 0x00;
const PLAIN: u8 = 0x01;
const SKIPPABLE_FROM: u8 = 0x80;
const STREAM: u8 = 0xff;
/// Content of the first frame.
const STREAM_NAME: &[u8] = b"sNaPpY";

/// Decompresses frames, up to `bytes_max` in total.
pub(super) fn decompress(mut frames: &[u8], bytes_max: usize) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let mut decoder = raw::Decoder::new();
    let mut named = false;
    while !frames.is_empty() {
        let (kind, body) = next(&mut frames)?;
        if !named && kind != STREAM {
            return Err("the frames do not start with the stream identifier".to_owned());
        }
        match kind {
            STREAM if body == STREAM_NAME => named = true,
            COMPRESSED | PLAIN => {
                let (sum, data) = body.split_first_chunk::<4>().ok_or("a frame has no checksum")?;
                let start = out.len();
                let length = match kind {
                    PLAIN => data.len(),
                    _ => raw::decompress_len(data).map_err(|error| error.to_string())?,
                };
                if length > FRAME_BYTES_MAX || length > bytes_max - start {
                    return Err(format!("more than {bytes_max} bytes, or a frame is too large"));
                }
                out.resize(start + length, 0);
                if kind == PLAIN {
                    out[start..].copy_from_slice(data);
                } else {
                    let written = decoder.decompress(data, &mut out[start..]);
                    written.map_err(|error| error.to_string())?;
                }
                if masked(crc32c::crc32c(&out[start..])) != u32::from_le_bytes(*sum) {
                    return Err("the checksum of a frame is wrong".to_owned());
                }
            }
            SKIPPABLE_FROM..STREAM => {}
            _ => return Err(format!("a frame has the unknown kind {kind:#04x}")),
        }
    }
    Ok(out)
}

fn next<'a>(frames: &mut &'a [u8]) -> Result<(u8, &'a [u8]), String> {
    let ([kind, a, b, c], rest) = frames.split_first_chunk::<4>().ok_or("a frame is cut short")?;
    let length = u32::from_le_bytes([*a, *b, *c, 0]);
    let length = usize::try_from(length).map_err(|error| error.to_string())?;
    let (body, rest) = rest.split_at_checked(length).ok_or("a frame extends beyond the end")?;
    *frames = rest;
    Ok((*kind, body))
}

/// The checksum as stored in frames: masked, because a CRC over data that contains CRCs is weak.
fn masked(sum: u32) -> u32 {
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn compressed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = snap::write::FrameEncoder::new(Vec::new());
        encoder.write_all(bytes).expect("memory");
        encoder.into_inner().expect("memory")
    }

    #[test]
    fn frames_of_the_library_decompress_up_to_the_bound() {
        for length in [1usize, 100, 65_536, 65_537, 300_000] {
            let mut state = 1u32;
            let bytes: Vec<u8> = (0..length)
                .map(|at| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    if at % 3 == 0 { state.to_le_bytes()[3] } else { 7 }
                })
                .collect();
            let frames = compressed(&bytes);
            assert_eq!(decompress(&frames, length).expect("whole"), bytes);
            decompress(&frames, length - 1).expect_err("beyond the bound");
        }
        assert!(decompress(&[], 10).expect("nothing").is_empty());
    }

    proptest! {
        #[test]
        fn damaged_frames_are_refused(at in 0usize..200, bit in 0u8..8, cut in 0usize..200) {
            let bytes: Vec<u8> = (0..=255).cycle().take(700).collect();
            let frames = compressed(&bytes);
            let mut flipped = frames.clone();
            let at = at % frames.len();
            flipped[at] ^= 1 << bit;
            // A frame may turn into a skippable one, so that less comes out.
            if let Ok(out) = decompress(&flipped, 10_000) {
                prop_assert_ne!(&out, &bytes);
            }
            let cut = cut % frames.len();
            if let Ok(out) = decompress(&frames[..cut], 10_000) {
                prop_assert!(out.len() < bytes.len());
            }
        }
    }
}
