//! Access to the memory behind a caller's pointers.

use std::ffi::{CStr, c_char};
use std::slice;

use crate::guard::{Refusal, refused};

/// Maximum number of elements, because no object has more bytes.
fn checked<T>(is_null: bool, is_aligned: bool, length: usize, what: &str) -> Result<(), Refusal> {
    let most = isize::MAX as usize / size_of::<T>();
    if is_null || !is_aligned || length > most {
        let wrong = if is_null { "is NULL" } else { "is not aligned, or too long" };
        return Err(Refusal::of(format!("`{what}` {wrong}")));
    }
    Ok(())
}

/// # Safety
///
/// The pointer is null or points to this many elements, which live as long as the result.
pub(crate) unsafe fn slice<'a, T>(
    pointer: *const T,
    length: usize,
    what: &str,
) -> Result<&'a [T], Refusal> {
    if length == 0 {
        return Ok(&[]);
    }
    checked::<T>(pointer.is_null(), pointer.is_aligned(), length, what)?;
    // SAFETY: it is not null, and aligned; the rest is the caller's word.
    Ok(unsafe { slice::from_raw_parts(pointer, length) })
}

/// # Safety
///
/// The conditions of `slice` hold, and nothing else accesses the elements.
pub(crate) unsafe fn output<'a, T>(
    pointer: *mut T,
    length: usize,
    what: &str,
) -> Result<&'a mut [T], Refusal> {
    if length == 0 {
        return Ok(&mut []);
    }
    checked::<T>(pointer.is_null(), pointer.is_aligned(), length, what)?;
    // SAFETY: it is not null, and aligned; the rest is the caller's word.
    Ok(unsafe { slice::from_raw_parts_mut(pointer, length) })
}

/// # Safety
///
/// The pointer is null or points to a text that ends with NUL and lives as long as the result.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Refusal> {
    checked::<u8>(pointer.is_null(), true, 0, what)?;
    // SAFETY: it is not null; the rest is the caller's word.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str().map_err(|error| refused(format!("`{what}`: {error}")))
}

/// Returns the texts of all tokens; none if the pointer is null.
///
/// # Safety
///
/// The pointer is null or points to this many texts.
pub(crate) unsafe fn texts<'a>(
    pointer: *const *const c_char,
    length: u32,
) -> Result<Vec<&'a [u8]>, Refusal> {
    if pointer.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: as above.
    let pointers = unsafe { slice(pointer, length as usize, "token_texts")? };
    let texts = pointers.iter().map(|&pointer| {
        checked::<u8>(pointer.is_null(), true, 0, "token_texts")?;
        // SAFETY: it is not null; the rest is the caller's word.
        Ok(unsafe { CStr::from_ptr(pointer) }.to_bytes())
    });
    texts.collect()
}

/// Returns the core's name of a request.
pub(crate) fn name(slot: u32, generation: u64) -> String {
    format!("{slot}.{generation}")
}
