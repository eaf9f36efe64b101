//! The name of a GPU that means the same in every process and container.

use std::fmt;

/// UUID of a GPU, or of a slice of one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GpuUuid(pub [u8; 16]);

impl fmt::Display for GpuUuid {
    /// As the driver's own tools print it: `GPU-` and five groups of hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU-")?;
        for (index, byte) in self.0.iter().enumerate() {
            if matches!(index, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for GpuUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_prints_as_the_drivers_tools_print_it() {
        let uuid = GpuUuid(*b"\x01\x23\x45\x67\x89\xab\xcd\xef\x00\x11\x22\x33\x44\x55\x66\x77");
        assert_eq!(uuid.to_string(), "GPU-01234567-89ab-cdef-0011-223344556677");
    }
}
