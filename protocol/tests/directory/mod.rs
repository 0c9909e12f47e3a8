//! A marks directory in memory and a process that judges it: what the probe does, without a
//! file system and with any clock.
#![allow(dead_code, reason = "each test judges what it needs")]

use std::collections::BTreeMap;
use std::string::String;
use std::vec::Vec;

use tickmark_protocol::{
    DecodeError, Decoded, Errno, Fault, Fold, Generation, Mark, MarkFile, MaxAge, Now, Own, Pid1,
    Read, Record, SlotObservation, TEXT_MAX, Verdict, encode_mark,
};

use crate::examples;

pub(crate) const DIR: &str = "/run/marks";
pub(crate) const SECOND: u64 = 1_000_000_000;

#[derive(Debug, Clone)]
pub(crate) enum File {
    Bytes { bytes: Vec<u8>, mtime_ns: i64 },
    Failed(Fault),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Directory {
    pub(crate) files: BTreeMap<String, File>,
}

/// The wall clock of the judging process that belongs to `examples::mark()`.
pub(crate) fn wall_ns() -> i64 {
    i64::try_from(examples::WALL_MS).expect("before 2262") * 1_000_000
}

impl Directory {
    /// `count` slots, all healthy, of the generation of the examples.
    pub(crate) fn healthy(count: u32) -> Directory {
        let mut directory = Directory::default();
        directory.put("expected", tickmark_protocol::Expected { processes: count }.encode());
        directory.put("generation", examples::generation().encode());
        for slot in 0..count {
            directory.put_mark(&Mark { slot, ..examples::mark() });
        }
        directory
    }

    /// The same as a Ruby worker writes it.
    pub(crate) fn healthy_text(count: u32) -> Directory {
        let mut directory = Directory::default();
        directory.put("expected", format!("{count}"));
        directory.put("generation", "mnt:[4026532616]:12345");
        for slot in 0..count {
            directory.put_text_mark(&Mark { slot, ..examples::mark() });
        }
        directory
    }

    pub(crate) fn put(&mut self, name: &str, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref().to_vec();
        self.files.insert(name.into(), File::Bytes { bytes, mtime_ns: wall_ns() });
    }

    pub(crate) fn put_mark(&mut self, mark: &Mark) {
        self.put(&format!("worker-{}", mark.slot), MarkFile::encode(mark));
    }

    pub(crate) fn put_text_mark(&mut self, mark: &Mark) {
        let text: heapless::String<TEXT_MAX> = encode_mark(mark);
        self.put(&format!("worker-{}", mark.slot), text.as_bytes());
    }

    pub(crate) fn fail(&mut self, name: &str, fault: Fault) {
        self.files.insert(name.into(), File::Failed(fault));
    }

    pub(crate) fn deny(&mut self, name: &str) {
        self.fail(name, Fault::Errno(Errno::ACCESS));
    }

    pub(crate) fn remove(&mut self, name: &str) {
        self.files.remove(name);
    }

    pub(crate) fn touch(&mut self, name: &str, at_ns: i64) {
        match self.files.get_mut(name) {
            Some(File::Bytes { mtime_ns, .. }) => *mtime_ns = at_ns,
            other => panic!("{name} cannot be touched: {other:?}"),
        }
    }

    pub(crate) fn read<T>(
        &self,
        name: &str,
        decode: impl FnOnce(&[u8]) -> Result<T, DecodeError>,
    ) -> Read<T> {
        match self.files.get(name) {
            None => Read::Absent,
            Some(File::Failed(fault)) => Read::Failed(*fault),
            Some(File::Bytes { bytes, .. }) => match decode(bytes) {
                Ok(record) => Read::Found(record),
                Err(error) => Read::Failed(Fault::Decode(error)),
            },
        }
    }

    fn mtime(&self, name: &str) -> i64 {
        match self.files.get(name) {
            Some(File::Bytes { mtime_ns, .. }) => *mtime_ns,
            _ => 0,
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Judge {
    pub(crate) own: Own,
    pub(crate) now: Now,
    pub(crate) time_namespace: u64,
    pub(crate) max_age: MaxAge,
}

impl Judge {
    /// A process in the container of the examples, at the moment of their mark.
    pub(crate) fn beside_the_worker() -> Judge {
        Judge {
            own: Own {
                generation: examples::generation(),
                pid1: Pid1::Here,
                strict: false,
                text: false,
            },
            now: Now { monotonic_ns: examples::MONOTONIC_NS, realtime_ns: wall_ns() },
            time_namespace: examples::TIME_NAMESPACE,
            max_age: MaxAge::DEFAULT,
        }
    }

    /// A process that could read nothing about itself.
    pub(crate) fn nobody() -> Judge {
        let mut judge = Judge::beside_the_worker();
        judge.own.generation = Generation::default();
        judge
    }

    /// Both clocks go on.
    pub(crate) fn after(mut self, ns: u64) -> Judge {
        self.now.monotonic_ns += ns;
        self.now.realtime_ns += i64::try_from(ns).expect("before 2262");
        self
    }

    pub(crate) fn verdict(&self, directory: &Directory) -> Verdict {
        let expected: Read<Decoded<_>> = directory.read("expected", Record::decode);
        let generation: Read<Decoded<_>> = directory.read("generation", Record::decode);
        let published = directory.files.contains_key("topology-unsafe");
        let mut fold = Fold::header(&self.own, published, &expected, &generation, self.max_age);
        if let Some(declared) = fold.declared() {
            for slot in declared.slots() {
                let name = format!("worker-{slot}");
                let observation = SlotObservation {
                    mark: directory.read(&name, |bytes| MarkFile::decode(slot, bytes)),
                    mtime_ns: directory.mtime(&name),
                    now: self.now,
                    time_namespace: self.time_namespace,
                };
                fold.slot(&self.own, &observation);
            }
        }
        fold.finish()
    }

    /// What the probe prints, and its exit status.
    pub(crate) fn answer(&self, directory: &Directory) -> (String, i32) {
        let verdict = self.verdict(directory);
        let exit = i32::from(!verdict.is_healthy());
        (format!("{}", verdict.line(DIR.as_bytes())), exit)
    }

    #[track_caller]
    pub(crate) fn says(&self, directory: &Directory, line: &str) {
        let (said, exit) = self.answer(directory);
        assert_eq!(said, line);
        let healthy = line.ends_with("process(es) healthy");
        assert_eq!(exit, i32::from(!healthy), "exit status of {line:?}");
    }
}
