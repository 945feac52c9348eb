//! The lists of packs: `docs/format.md`, section 7, rule 6, and what of rule 8 is beside the steps.

use glyd_format::Buffer;
use glyd_format::finding::{Finding, Rule};
use glyd_format::layout::BASE_BYTES;
use glyd_format::manifest::{PackEntry, buffer_name};
use glyd_format::packed::Buffers;
use glyd_format::step::Grid;

use crate::Error;
use crate::look::{Look, base_entry};

impl Look<'_> {
    /// Rule 6, of the base buffer as a whole, and what of rule 8 is beside the steps: the list's ends.
    pub(crate) fn lists(
        &self,
        pack: &str,
        entry: &PackEntry,
        buffers: Buffers,
        grid: Grid,
    ) -> Result<Vec<Finding>, Error> {
        let layout = entry.coding.layout();
        let name = |buffer| buffer_name(pack, entry.experts.is_some(), layout, buffer);
        let mut findings = Vec::new();
        let base_damage = |expected: String, found: String| {
            self.damage(Rule::Lists, buffers.base, &name(Buffer::Base), expected, found)
        };
        let entry_at = |number: u64| -> Result<i64, Error> {
            let mut bytes = [0; BASE_BYTES];
            self.packed.weights().read_at(buffers.base, &mut bytes, number * BASE_BYTES as u64)?;
            Ok(i64::from(base_entry(&bytes)))
        };
        let first = entry_at(0)?;
        let head = layout.list_head_units();
        if first != i64::try_from(head).unwrap_or(i64::MAX) {
            findings.push(base_damage(format!("{head} first"), first.to_string()));
        }
        let last = entry_at(grid.steps())?;
        let units = self.packed.weights().tensor(buffers.list).bytes() / layout.list_unit_bytes() as u64;
        let fits = u64::try_from(last).is_ok_and(|last| last >= head && layout.list_units(last) == units);
        if !fits {
            let list = name(Buffer::List);
            let expected = format!("an end that `{list}` of {units} entries has room for, and no more");
            findings.push(base_damage(expected, format!("{last} last")));
            return Ok(findings);
        }
        let end = u64::try_from(last).unwrap_or(0);
        for range in [0..head, end..units] {
            let unit = layout.list_unit_bytes() as u64;
            let bytes = usize::try_from((range.end - range.start) * unit).unwrap_or(usize::MAX);
            let mut bytes = vec![0; bytes];
            self.packed.weights().read_at(buffers.list, &mut bytes, range.start * unit)?;
            if let Some(at) = bytes.iter().position(|&byte| byte != 0) {
                let expected = format!("zeros from byte {} to {}", range.start * unit, range.end * unit);
                let found = format!("{:#04x} at byte {}", bytes[at], range.start * unit + at as u64);
                findings.push(self.damage(
                    Rule::Canonical,
                    buffers.list,
                    &name(Buffer::List),
                    expected,
                    found,
                ));
            }
        }
        Ok(findings)
    }
}
