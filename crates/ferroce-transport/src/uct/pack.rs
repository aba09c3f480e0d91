use ferroce_verbs::Region;
use std::io;

/// More was written than fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes are more than the {most} that fit")]
pub struct Full {
    /// What it would have been.
    pub len: usize,
    /// What fits.
    pub most: usize,
}

/// Where a *bcopy* operation packs its message: memory of the transport.
#[derive(Debug)]
pub struct Packer<'a> {
    to: Target<'a>,
    len: usize,
    most: usize,
    full: Option<Full>,
}

#[derive(Debug)]
enum Target<'a> {
    Region { region: &'a Region, offset: usize },
    Bytes(&'a mut Vec<u8>),
}

impl<'a> Packer<'a> {
    /// Writes at most `most` bytes to `region`, from `offset` on.
    pub(crate) const fn to_region(region: &'a Region, offset: usize, most: usize) -> Self {
        Self { to: Target::Region { region, offset }, len: 0, most, full: None }
    }

    /// Appends at most `most` bytes to `bytes`.
    pub(crate) const fn to_bytes(bytes: &'a mut Vec<u8>, most: usize) -> Self {
        Self { to: Target::Bytes(bytes), len: 0, most, full: None }
    }

    /// Appends to the message. Once something did not fit, the operation ends in [`super::OpError::TooLong`].
    ///
    /// # Errors
    ///
    /// [`Full`]; nothing of `bytes` was taken.
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Full> {
        if bytes.len() > self.most - self.len {
            let full = Full { len: self.len.saturating_add(bytes.len()), most: self.most };
            return Err(*self.full.get_or_insert(full));
        }
        match &mut self.to {
            Target::Region { region, offset } => {
                region.write(*offset + self.len, bytes).map_err(|_| Full { len: bytes.len(), most: 0 })?;
            }
            Target::Bytes(to) => to.extend_from_slice(bytes),
        }
        self.len += bytes.len();
        Ok(())
    }

    /// Bytes written.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was written.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that still fit.
    pub const fn room(&self) -> usize {
        self.most - self.len
    }

    /// How long the message is, if all of it fitted.
    pub(crate) const fn finish(self) -> Result<usize, Full> {
        match self.full {
            None => Ok(self.len),
            Some(full) => Err(full),
        }
    }
}

impl io::Write for Packer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes).map_err(|full| io::Error::new(io::ErrorKind::WriteZero, full))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_verbs::Buffer;

    #[test]
    fn what_does_not_fit_is_remembered() {
        let region = Region::owned(Buffer::zeroed(16).unwrap());
        let mut packer = Packer::to_region(&region, 4, 8);
        packer.put(&[1; 5]).unwrap();
        assert_eq!((packer.len(), packer.room()), (5, 3));
        assert_eq!(packer.put(&[2; 4]), Err(Full { len: 9, most: 8 }));
        packer.put(&[3; 3]).unwrap();
        assert!(packer.finish().is_err());
        let mut bytes = [0; 16];
        region.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 0, 0, 0, 1, 1, 1, 1, 1, 3, 3, 3, 0, 0, 0, 0]);
        let mut out = vec![9];
        let mut packer = Packer::to_bytes(&mut out, 2);
        io::Write::write_all(&mut packer, &[1, 2]).unwrap();
        assert!(io::Write::write_all(&mut packer, &[3]).is_err());
        assert_eq!(out, [9, 1, 2]);
    }
}
