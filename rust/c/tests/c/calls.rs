//! Results and errors of calls.
#![expect(unsafe_code, reason = "as C calls")]

use std::ffi::{CStr, CString, c_char};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::thread;

use specds::{
    BatchRow, DrafterHandle, SPECDS_REFUSED, StepTime, specds_close, specds_draft, specds_end,
    specds_end_all, specds_last_error, specds_num_predictions, specds_observe_predictions,
    specds_observe_step, specds_open, specds_stats,
};
use specds_core::draft::DraftLimits;
use specds_core::engine::{Context, EngineConfig, EngineDrafter, EngineInfo};
use specds_index::{DatastoreBuilder, DatastoreOptions};

use crate::random::Random;

const VOCAB_SIZE: u32 = 12;

fn open(options: &str) -> *mut DrafterHandle {
    let options = CString::new(options).unwrap();
    // SAFETY: the text lives, and no texts of tokens are given.
    unsafe { specds_open(options.as_ptr(), VOCAB_SIZE, null(), false, null(), 0) }
}

fn last_error() -> String {
    // SAFETY: it is this thread's until the next call.
    let reason = unsafe { CStr::from_ptr(specds_last_error()) };
    reason.to_str().unwrap().to_owned()
}

fn row(slot: u32, generation: u64, tokens: &[u32]) -> BatchRow {
    BatchRow {
        slot,
        max_tokens: 8,
        generation,
        tokens: tokens.as_ptr(),
        num_tokens: tokens.len(),
        start: 0,
        options: null(),
        min_prob: -1.0,
    }
}

/// Returns the chains of these rows.
fn draft(drafter: *mut DrafterHandle, rows: &[BatchRow], width: usize) -> Vec<Vec<u32>> {
    let (mut ids, mut lengths) = (vec![0; rows.len() * width], vec![0; rows.len()]);
    let (ids_at, size, lengths_at) = (ids.as_mut_ptr(), ids.len(), lengths.as_mut_ptr());
    // SAFETY: all live, and are as long as said.
    let status = unsafe {
        specds_draft(drafter, rows.as_ptr(), rows.len(), width, ids_at, size, lengths_at)
    };
    assert_eq!(status, 0, "{}", last_error());
    let chains = lengths.iter().enumerate();
    chains.map(|(row, length)| ids[row * width..][..*length].to_vec()).collect()
}

#[test]
fn drafts_equal_those_of_the_core() {
    let options = r#"{"memory_scope": "tenant", "min_prob": 0.05}"#;
    let facts = EngineInfo { vocab_size: Some(VOCAB_SIZE), ..EngineInfo::default() };
    let config: EngineConfig = serde_json::from_str(options).unwrap();
    let mut core = EngineDrafter::open(config, &facts).unwrap();
    let drafter = open(options);
    let mut random = Random(1);
    let phrases: Vec<_> = (0..4).map(|_| random.tokens(9, 0, VOCAB_SIZE)).collect();
    let mut texts: Vec<_> = (0..3).map(|_| random.phrases(&phrases, 12)).collect();
    let mut num_drafted = 0;
    for step in 0..60_u32 {
        let tenants = [c"{}", c"{\"specds_tenant\": \"a\"}", c"{\"specds_tenant\": 2}"];
        let rows = texts.iter().zip(0..).map(|(text, slot)| BatchRow {
            max_tokens: random.below(7),
            min_prob: [-1.0, 0.0, 0.4][random.below(3) as usize],
            options: tenants[slot as usize].as_ptr(),
            ..row(slot, (step / 20).into(), text)
        });
        let rows: Vec<_> = rows.collect();
        let names = ["0", "1", "2"].map(|slot| format!("{slot}.{}", step / 20));
        let contexts = texts.iter().enumerate().map(|(slot, tokens)| {
            let tenant = ["", "a", "2"][slot];
            let name = &*names[slot];
            Some(Context { tokens, name, tenant, ..Context::default() })
        });
        core.sync(&contexts.collect::<Vec<_>>());
        let limits = rows.iter().map(|row| DraftLimits {
            min_prob: if row.min_prob < 0.0 { 0.05 } else { row.min_prob },
            is_chain: true,
            ..DraftLimits::nodes(row.max_tokens.min(5) as usize)
        });
        let drafts = core.draft(&limits.collect::<Vec<_>>());
        let trees = drafts.trees().into_iter();
        let expected: Vec<_> = trees.map(|tree| tree.token_ids().to_vec()).collect();
        drop(drafts);
        assert_eq!(draft(drafter, &rows, 5), expected);
        num_drafted += expected.concat().len();
        for text in &mut texts {
            text.extend(random.phrases(&phrases, 1));
        }
        if step % 20 == 19 {
            for (slot, text) in (0..).zip(&texts) {
                // SAFETY: the text lives.
                let end = unsafe {
                    specds_end(drafter, slot, (step / 20).into(), text.as_ptr(), text.len())
                };
                assert_eq!(end, 0);
                core.end_with(&names[slot as usize], text);
            }
        }
    }
    assert!(num_drafted > 200, "{num_drafted}");
    // SAFETY: it was opened above.
    unsafe { specds_close(drafter) };
}

fn stats(drafter: *mut DrafterHandle) -> serde_json::Value {
    let mut text = [0; 4096];
    // SAFETY: the buffer lives, and is as long as said.
    let length = unsafe { specds_stats(drafter, text.as_mut_ptr().cast(), text.len()) };
    serde_json::from_slice(&text[..usize::try_from(length).unwrap()]).unwrap()
}

fn refused(status: i32, reason: &str) {
    assert_eq!(status, SPECDS_REFUSED, "{reason}");
    let said = last_error();
    assert!(said.contains(reason), "{said} is not {reason}");
}

type Spoilt = (fn(&mut BatchRow), &'static str);

#[test]
fn invalid_arguments_are_named_and_invalid_options_refused_by_row() {
    for (options, reason) in [
        ("", "EOF while parsing"),
        ("[]", "must be a JSON object"),
        (r#"{"datastor": "a"}"#, "unknown field `datastor`"),
        (r#"{"datastore": "/nowhere"}"#, "/nowhere"),
        (r#"{"min_prob": 2}"#, "min_prob"),
    ] {
        let (drafter, said) = (open(options), last_error());
        assert!(drafter.is_null() && said.contains(reason), "{said}");
    }
    let drafter = open("{}");
    let tokens = [1, 2, 3];
    let good = row(0, 0, &tokens);
    let (mut ids, mut lengths, mut text) = ([0; 8], [0], [0 as c_char; 20]);
    let (ids, lengths, text) = (ids.as_mut_ptr(), lengths.as_mut_ptr(), text.as_mut_ptr());
    let predictions = tokens.as_ptr();
    // SAFETY: what is wrong with these is seen before it is used.
    unsafe {
        let of = |row: &BatchRow| specds_draft(drafter, row, 1, 8, ids, 8, lengths);
        assert_eq!(of(&good), 0);
        let odd = |row: &mut BatchRow| row.tokens = row.tokens.wrapping_byte_add(1);
        let not_aligned = "`tokens` is not aligned, or too long";
        let rows: [Spoilt; 3] = [
            (|row| row.tokens = null(), "`tokens` is NULL"),
            (odd, not_aligned),
            (|row| row.num_tokens = usize::MAX, not_aligned),
        ];
        for (spoil, reason) in rows {
            let mut row = row(0, 0, &tokens);
            spoil(&mut row);
            refused(of(&row), reason);
        }
        let options: [fn(&mut BatchRow); 9] = [
            |row| row.min_prob = f32::NAN,
            |row| row.options = c"\xff".as_ptr(),
            |row| row.options = c"[]".as_ptr(),
            |row| row.options = c"{\"specds_of\": 1}".as_ptr(),
            |row| row.options = c"{\"specds_off\": \"no\"}".as_ptr(),
            |row| row.options = c"{\"specds_off\": 0.0}".as_ptr(),
            |row| row.options = c"{\"specds_group\": true}".as_ptr(),
            |row| row.options = c"{\"specds_tenant\": 1e3}".as_ptr(),
            |row| row.options = c"{\"specds_predicted_output\": [-1]}".as_ptr(),
        ];
        for (generation, spoil) in (1..).zip(options) {
            let mut row = row(0, generation, &tokens);
            spoil(&mut row);
            assert_eq!(of(&row), 0);
        }
        assert_eq!(stats(drafter)["num_refused_options"], 9);
        assert_eq!(stats(drafter)["num_opened"], 10);
        let good = &raw const good;
        let call = |drafter, rows, ids, at| specds_draft(drafter, rows, 1, 8, ids, 8, at);
        refused(call(null_mut(), good, ids, lengths), "`drafter` is NULL");
        refused(call(drafter, null(), ids, lengths), "`rows` is NULL");
        let nowhere = call(drafter, good, null_mut(), lengths);
        refused(nowhere, "`token_ids` is NULL");
        refused(call(drafter, good, ids, null_mut()), "`lengths` is NULL");
        for width in [9, usize::MAX] {
            let short = specds_draft(drafter, good, 1, width, ids, 8, lengths);
            refused(short, "`token_ids` is too short");
        }
        refused(specds_end(null_mut(), 0, 0, null(), 0), "`drafter` is NULL");
        refused(specds_stats(drafter, text, 20), "`buffer` is too short");
        refused(specds_stats(drafter, null_mut(), 20), "`buffer` is NULL");
        let length = specds_stats(drafter, null_mut(), 0);
        let mut exact = vec![1; usize::try_from(length).unwrap()];
        let size = exact.len();
        refused(specds_stats(drafter, exact.as_mut_ptr(), size), "`buffer` is too short");
        exact.push(1);
        assert_eq!(specds_stats(drafter, exact.as_mut_ptr(), size + 1), length);
        assert_eq!(exact[size], 0);
        let large = specds_observe_predictions(drafter, predictions, 3, usize::MAX, 2);
        refused(large, "`num_positions` is too large");
        refused(specds_observe_predictions(drafter, null(), 3, 1, 2), "`predictions` is NULL");
        specds_close(drafter);
        specds_close(null_mut());
    }
}

#[test]
fn options_of_a_request_are_read_when_it_begins() {
    let drafter = open(r#"{"step_cost": "ignored"}"#);
    let drafted = |generation, options: &CStr| {
        let row = BatchRow { options: options.as_ptr(), ..row(0, generation, &[1, 2, 3]) };
        draft(drafter, &[row], 8)[0].clone()
    };
    let predicted = c"{\"specds_predicted_output\": [0, 1, 2, 3, 4, 5, 6]}";
    assert_eq!(drafted(0, predicted)[..3], [4, 5, 6]);
    assert!(drafted(1, c"{}").is_empty());
    assert_eq!(drafted(2, predicted)[..3], [4, 5, 6]);
    let off = c"{\"specds_off\": true, \"specds_predicted_output\": [0, 1, 2, 3, 4, 5, 6]}";
    assert!(drafted(3, off).is_empty());
    assert!(drafted(3, predicted).is_empty());
    assert_eq!(stats(drafter)["num_opened"], 3);
    // SAFETY: it was opened above.
    unsafe { specds_close(drafter) };
}

/// A pass over 4 tokens costs less than one over 3, as in kernels for 4; more than 4 cost too much.
#[test]
fn measured_times_at_the_start_choose_the_size_of_drafts() {
    let open = |times: &[StepTime]| {
        let (times, number) = (times.as_ptr(), times.len());
        // SAFETY: the times live, and no texts of tokens are given.
        unsafe { specds_open(c"{}".as_ptr(), VOCAB_SIZE, null(), true, times, number) }
    };
    let times = [(1, 1.0), (2, 1.3), (3, 1.8), (4, 1.4), (8, 7.0), (16, 15.0)];
    let times = times.map(|(num_tokens, seconds)| StepTime { num_tokens, seconds });
    let drafter = open(&times);
    let tokens = [1, 2, 3, 4, 5, 6, 7, 8].repeat(4);
    assert_eq!(draft(drafter, &[row(0, 0, &tokens)], 8)[0], [1, 2, 3]);
    // SAFETY: it was opened above.
    unsafe { specds_close(drafter) };
    let wrong: [fn(&mut [StepTime; 6]); 4] = [
        |times| times[0].num_tokens = 0,
        |times| times[2].num_tokens = 2,
        |times| times[5].num_tokens = usize::MAX,
        |times| times[1].seconds = f64::NAN,
    ];
    for spoil in wrong {
        let mut times = times;
        spoil(&mut times);
        assert!(open(&times).is_null());
        assert!(last_error().contains("`step_times`"), "{}", last_error());
    }
}

#[test]
fn datastore_of_another_tokenizer_is_rejected_if_texts_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let options = DatastoreOptions {
        tokenizer_name: "of three tokens".to_owned(),
        // hashlib.sha256(json.dumps([[0, "a"], [1, "b"], [2, "c"]]).encode()).hexdigest()
        tokenizer_fingerprint: "eaad3d466530532800bf414e231c17b483a04ae8cfd0204384d77be5a5001173"
            .to_owned(),
        ..DatastoreOptions::new(3, 2)
    };
    let mut builder = DatastoreBuilder::create(&path, options).unwrap();
    builder.add_documents(&[0, 1, 0, 1], &[4], &[]).unwrap();
    builder.finish().unwrap();
    let options = CString::new(format!(r#"{{"datastore": "{}"}}"#, path.display())).unwrap();
    for (texts, is_refused) in
        [([c"a", c"b", c"c", c"padding"], false), ([c"a", c"c", c"b", c"padding"], true)]
    {
        let texts = texts.map(CStr::as_ptr);
        // SAFETY: all texts live.
        let drafter = unsafe { specds_open(options.as_ptr(), 4, texts.as_ptr(), true, null(), 0) };
        let said = last_error();
        assert_eq!(drafter.is_null(), is_refused, "{said}");
        assert!(!is_refused || said.contains("another tokenizer"), "{said}");
        if !is_refused {
            let stats = stats(drafter);
            assert_eq!(stats["configuration"]["datastore"], path.to_str().unwrap());
            assert_eq!(stats["datastore"]["num_tokens"], 5);
        }
        // SAFETY: it was opened here, or is null.
        unsafe { specds_close(drafter) };
    }
}

/// Makes a call with random arguments, of which only the lengths of buffers are valid.
fn call_at_random(drafter: *mut DrafterHandle, random: &mut Random, num_drafted: &AtomicU64) {
    let mut count = |limit| random.below(limit) as usize;
    let (num_rows, width, k) = (count(5), count(9), count(5));
    let room = num_rows * width * usize::from(count(20) > 0) + count(2);
    let mut texts: Vec<_> = (0..num_rows).map(|_| 1 + count(40)).collect();
    let texts = texts.iter_mut().map(|length| random.tokens(*length, 0, VOCAB_SIZE + 1));
    let texts: Vec<_> = texts.collect();
    let rows = texts.iter().map(|text| BatchRow {
        max_tokens: random.below(20),
        start: [0, 1, usize::MAX][random.below(40).saturating_sub(37) as usize],
        ..row(random.below(4), random.below(3).into(), text)
    });
    let rows: Vec<_> = rows.collect();
    let (mut ids, mut lengths) = (vec![0; room], vec![0; num_rows]);
    let (ids_at, lengths_at) = (ids.as_mut_ptr(), lengths.as_mut_ptr());
    let nothing = random.below(20) == 0;
    // SAFETY: every pointer is null or leads to as many elements as the call says.
    let status = unsafe {
        match random.below(12) {
            0 => specds_end(drafter, random.below(4), 0, null(), 0),
            1 if num_rows > 0 => {
                specds_end(drafter, random.below(4), 1, texts[0].as_ptr(), texts[0].len())
            }
            2 => specds_end_all(drafter),
            3 => specds_observe_step(drafter, [f64::NAN, 0.01, -1.0][random.below(3) as usize]),
            4 => specds_stats(drafter, lengths_at.cast(), num_rows * size_of::<usize>()),
            5 => specds_num_predictions(drafter),
            6 => specds_observe_predictions(drafter, ids_at, room, width, k),
            _ if nothing => {
                specds_draft(drafter, null(), num_rows, width, ids_at, room, lengths_at)
            }
            _ => {
                let rows = rows.as_ptr();
                let status = specds_draft(drafter, rows, num_rows, width, ids_at, room, lengths_at);
                let drafted = lengths.iter().sum::<usize>() as u64;
                num_drafted.fetch_add(drafted, Ordering::Relaxed);
                assert!(lengths.iter().all(|&length| length <= width));
                assert!(ids.iter().all(|&token| token < VOCAB_SIZE));
                status
            }
        }
    };
    assert!(status >= SPECDS_REFUSED, "{}", last_error());
}

/// `make fuzz-sanitized` runs ten times as many calls, under a sanitizer.
#[test]
fn random_calls_of_threads_do_not_break_a_drafter() {
    let times = std::env::var("SPECDS_FUZZ").map_or(1, |times| times.parse().unwrap());
    for options in [r#"{"memory_scope": "shared", "step_cost": "ignored"}"#, "{}"] {
        let drafter = open(options);
        let num_drafted = AtomicU64::new(0);
        thread::scope(|scope| {
            for seed in 0..3 {
                let (drafter, num_drafted) = (AtomicPtr::new(drafter), &num_drafted);
                scope.spawn(move || {
                    let drafter = drafter.into_inner();
                    let mut random = Random(seed);
                    for _ in 0..400 * times {
                        call_at_random(drafter, &mut random, num_drafted);
                    }
                });
            }
        });
        assert!(num_drafted.into_inner() > 100 * times || options == "{}");
        // SAFETY: it was opened above, and the threads have ended.
        unsafe { specds_close(drafter) };
    }
}
