//! The parsers for procfs, on text as kernels write it and on text that they do not.

use tickmark_protocol::procfs::{
    INITIAL_CGROUP_NAMESPACE, INITIAL_PID_NAMESPACE, MountIds, MountInfo, at_cgroup_root, boot_id,
    namespace_inode, pid1_cgroup_outside, stat_start_time, unescape,
};

fn stat(command: &str, start: &str) -> String {
    format!(
        "1 ({command}) S 0 1 1 0 -1 4194560 3 0 0 0 0 0 0 0 20 0 1 0 {start} 2523136 190 \
         18446744073709551615 4194304 4200000 0 0 0 0 0 0 0 0 0 0 17 3 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
    )
}

#[test]
fn start_time_after_any_command() {
    for command in [
        "sh",
        "",
        " ",
        "a b",
        ")",
        "(",
        ") (",
        ") ) S 9 9 9",
        "a)b",
        "x\ny",
        "\n) \n",
        "((",
        "))) ",
        "1 (x) S 0 1 1 0 -1 4194560 3 0 0 0 0 0 0 0 20 0 1 0 999",
        "käse",
    ] {
        assert_eq!(stat_start_time(stat(command, "12345").as_bytes()), Some(12_345), "{command:?}");
    }
    // A command need not be UTF-8.
    let mut raw = b"1 (\xff\xfe) ".to_vec();
    raw.extend_from_slice(&stat("x", "77").as_bytes()["1 (x) ".len()..]);
    assert_eq!(stat_start_time(&raw), Some(77));
}

#[test]
fn start_time_zero_is_data() {
    assert_eq!(stat_start_time(stat("sh", "0").as_bytes()), Some(0));
    assert_eq!(stat_start_time(stat("sh", "18446744073709551615").as_bytes()), Some(u64::MAX));
}

#[test]
fn start_time_that_is_none() {
    for start in ["-1", "1x", "0x1", "18446744073709551616", "+1", "1.5"] {
        assert_eq!(stat_start_time(stat("sh", start).as_bytes()), None, "{start}");
    }
    let whole = stat("sh", "12345");
    let after = whole.find("12345").expect("it is there");
    for length in 0..after {
        assert_eq!(stat_start_time(&whole.as_bytes()[..length]), None, "{length}");
    }
    for rubbish in [&b""[..], b") ", b"1 sh S 0", b")", b"() ", b"\xff"] {
        assert_eq!(stat_start_time(rubbish), None);
    }
}

#[test]
fn namespace_links() {
    assert_eq!(namespace_inode(b"mnt:[4026532616]", "mnt"), Some(4_026_532_616));
    assert_eq!(namespace_inode(b"time:[4026531834]", "time"), Some(4_026_531_834));
    assert_eq!(namespace_inode(b"pid:[4026531836]", "pid"), Some(INITIAL_PID_NAMESPACE));
    assert_eq!(namespace_inode(b"cgroup:[4026531835]", "cgroup"), Some(INITIAL_CGROUP_NAMESPACE));
    assert_eq!(namespace_inode(b"mnt:[0]", "mnt"), Some(0));
    for link in [
        &b""[..],
        b"mnt",
        b"mnt:",
        b"mnt:[",
        b"mnt:[]",
        b"mnt:[1",
        b"mnt:1]",
        b"mnt:[1]\n",
        b"mnt:[1] (deleted)",
        b"pid:[1]",
        b" mnt:[1]",
        b"mnt:[-1]",
        b"mnt:[+1]",
        b"mnt:[1 ]",
        b"mnt:[18446744073709551616]",
        b"/proc/1/ns/mnt",
        b"mnt:[1]]",
        b"mnt:[[1]",
        b"\xff",
    ] {
        assert_eq!(namespace_inode(link, "mnt"), None, "{link:?}");
    }
    assert_eq!(namespace_inode(b"pid_for_children:[1]", "pid"), None);
}

#[test]
fn boot_ids() {
    let id = [
        0x6f, 0x1c, 0x0a, 0x52, 0x9d, 0x0e, 0x4b, 0x7a, 0x8f, 0x43, 0x2c, 0x5d, 0x7e, 0x90, 0xa1,
        0xb3,
    ];
    assert_eq!(boot_id(b"6f1c0a52-9d0e-4b7a-8f43-2c5d7e90a1b3\n"), Some(id));
    assert_eq!(boot_id(b"6F1C0A52-9D0E-4B7A-8F43-2C5D7E90A1B3"), Some(id));
    for text in [
        &b""[..],
        b"\n",
        b"-",
        b"6f1c0a52-9d0e-4b7a-8f43-2c5d7e90a1b\n",
        b"6f1c0a52-9d0e-4b7a-8f43-2c5d7e90a1b34\n",
        b"6f1c0a52-9d0e-4b7a-8f43-2c5d7e90a1bg\n",
        b"6f1c0a52 9d0e-4b7a-8f43-2c5d7e90a1b3\n",
        b"\xff\xff",
        b"6f1c0a52-9d0e-4b7a-8f43-2c5d7e90a1b3\n6f1c0a52-9d0e-4b7a-8f43-2c5d7e90a1b3\n",
    ] {
        assert_eq!(boot_id(text), None, "{text:?}");
    }
}

#[test]
fn the_root_of_a_cgroup_namespace() {
    assert!(at_cgroup_root(b"0::/\n"));
    assert!(at_cgroup_root(b"0::/"));
    for cgroup in [
        &b""[..],
        b"0::/sub\n",
        b"0::/..\n",
        b"0::/../../init\n",
        b"1:name=systemd:/\n0::/\n",
        b"0::/\n0::/\n",
        b"0::/\n\n",
        b"0::\n",
        b"1::/\n",
        b"12:pids:/\n",
    ] {
        assert!(!at_cgroup_root(cgroup), "{cgroup:?}");
    }
}

#[test]
fn pid_1s_cgroup_seen_from_a_namespace() {
    let own = b"0::/\n";
    for outside in [
        &b"0::/..\n"[..],
        b"0::/../4f2a\n",
        b"0::/../../init\n",
        b"0::/..",
        b"5:pids:/\n0::/../x\n",
        b"5:name=systemd:/../x\n0::/\n",
    ] {
        assert!(pid1_cgroup_outside(own, outside, false), "{outside:?}");
        assert!(pid1_cgroup_outside(own, outside, true), "{outside:?}");
    }
    // Equal paths, those below, and names that only look alike show nothing.
    for inside in [
        &b"0::/\n"[..],
        b"0::/init\n",
        b"0::/..x\n",
        b"0::/...\n",
        b"0::/a/../b\n",
        b"",
        b"\n",
        b"0:\n",
        b"/..\n",
        b"0::..\n",
    ] {
        assert!(!pid1_cgroup_outside(own, inside, false), "{inside:?}");
    }
    // A sibling's path is relative to an unknown root: only absolute paths are compared.
    assert!(!pid1_cgroup_outside(b"0::/sub\n", b"0::/init\n", false));
}

#[test]
fn pid_1s_cgroup_in_absolute_paths() {
    let own = b"4:pids:/kubepods/pod1/aaa\n0::/\n";
    for outside in [
        &b"4:pids:/kubepods/pod1/bbb\n0::/\n"[..],
        b"4:pids:/kubepods/pod1/aaab\n",
        b"4:pids:/init.scope\n0::/init.scope\n",
        b"0::/\n4:pids:/kubepods/pod2/aaa\n",
    ] {
        assert!(pid1_cgroup_outside(own, outside, true), "{outside:?}");
        assert!(!pid1_cgroup_outside(own, outside, false), "{outside:?}");
    }
    for related in [
        // Itself, an ancestor's, a descendant's, and hierarchies of which only one side knows.
        &b"4:pids:/kubepods/pod1/aaa\n"[..],
        b"4:pids:/kubepods/pod1\n",
        b"4:pids:/kubepods/pod1/\n",
        b"4:pids:/\n0::/\n",
        b"4:pids:/kubepods/pod1/aaa/init\n",
        b"5:cpu:/elsewhere\n",
        b"4:pids:\n",
        b"",
    ] {
        assert!(!pid1_cgroup_outside(own, related, true), "{related:?}");
    }
}

const MOUNTINFO: &[u8] = b"1420 1311 0:103 / / rw,relatime master:374 - overlay overlay rw\n\
    1421 1420 0:107 / /proc rw,nosuid - proc proc rw\n\
    18446744073709551615 1 0:1 / /a\\040b rw - tmpfs tmpfs rw\n\
    \n\
    18446744073709551616 1 0:1 / /too-large rw - tmpfs tmpfs rw\n\
    x1 1 0:1 / /no-number rw - tmpfs tmpfs rw\n\
    12\n\
    13\t1 0:1 / /no-space rw - tmpfs tmpfs rw\n\
    0 1420 0:1 / /zero rw shared:1 - tmpfs tmpfs rw\n\
    99 1420 0:1 / /last rw - tmpfs 5 rw";
const IDS: [u64; 5] = [1420, 1421, u64::MAX, 0, 99];

fn ids<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<u64> {
    let mut found = Vec::new();
    let mut ids = MountIds::default();
    for piece in pieces {
        ids.feed(piece, |id| found.push(id));
    }
    found
}

#[test]
fn mount_ids_are_first_fields_only() {
    assert_eq!(ids([MOUNTINFO]), IDS);
    assert_eq!(ids([&b""[..]]), []);
    // A number at the end may go on in the next piece.
    assert_eq!(ids([&b"12"[..]]), []);
}

#[test]
fn mount_ids_across_pieces_split_at_every_byte() {
    for first in 0..=MOUNTINFO.len() {
        let (a, rest) = MOUNTINFO.split_at(first);
        assert_eq!(ids([a, rest]), IDS, "{first}");
        for second in (0..=rest.len()).step_by(7) {
            let (b, c) = rest.split_at(second);
            assert_eq!(ids([a, b, &[], c]), IDS, "{first} {second}");
        }
    }
    assert_eq!(ids(MOUNTINFO.chunks(1)), IDS);
}

#[test]
fn a_line_of_mountinfo() {
    for optional in ["", "shared:1 ", "shared:1 master:374 ", "shared:1 master:2 propagate_from:3 "]
    {
        let line = format!("1422 1420 0:110 /x /run/m\\040s rw,nosuid {optional}- tmpfs tmpfs rw");
        let mount = MountInfo::parse(line.as_bytes()).expect("whole");
        assert_eq!(mount.id, 1422);
        assert_eq!(mount.mount_point, b"/run/m\\040s");
        assert_eq!(mount.fs_type, "tmpfs");
    }
    // A type with a subtype, and a source that is a lone dash.
    let line = b"1 2 0:1 / /mnt rw - fuse.sshfs - rw";
    assert_eq!(MountInfo::parse(line).map(|m| m.fs_type), Some("fuse.sshfs"));
    // A mount point that is a dash does not end the optional fields.
    let line = b"1 2 0:1 / - rw shared:1 - tmpfs tmpfs rw";
    assert_eq!(MountInfo::parse(line).map(|m| m.fs_type), Some("tmpfs"));
}

#[test]
fn a_line_of_mountinfo_that_lacks_a_field() {
    for line in [
        "",
        "1422",
        "1422 1420 0:110 / /run",
        "1422 1420 0:110 / /run rw",
        "1422 1420 0:110 / /run rw shared:1",
        "1422 1420 0:110 / /run rw shared:1 tmpfs tmpfs rw",
        "1422 1420 0:110 / /run rw -",
        "1422 1420 0:110 / /run rw - ",
        "1422 1420 0:110 / /run rw -  tmpfs rw",
        "x 1420 0:110 / /run rw - tmpfs tmpfs rw",
        " 1422 1420 0:110 / /run rw - tmpfs tmpfs rw",
        "-1 1420 0:110 / /run rw - tmpfs tmpfs rw",
    ] {
        assert_eq!(MountInfo::parse(line.as_bytes()), None, "{line:?}");
    }
    assert_eq!(MountInfo::parse(b"1 2 0:1 / / rw - \xff x rw"), None);
}

#[test]
fn octal_escapes() {
    let plain = |field: &[u8]| unescape(field).collect::<Vec<u8>>();
    assert_eq!(plain(b"/a\\040b\\011c\\012d\\134e"), b"/a b\tc\nd\\e");
    assert_eq!(plain(b"\\043\\377\\000"), b"#\xff\0");
    assert_eq!(plain(b"\\134040"), b"\\040");
    // What the kernel does not write stands as it is.
    for field in [&b"\\"[..], b"\\0", b"\\04", b"\\048", b"\\400", b"\\x20", b"a\\", b"\\\\", b""] {
        assert_eq!(plain(field), field);
    }
    assert_eq!(plain(b"\\\\040"), b"\\ ");
}
