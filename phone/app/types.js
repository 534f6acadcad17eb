/**
 * Types that the folders of this app share; no code. Tensors are typed arrays in row-major order, times are Unix
 * milliseconds unless a name says otherwise.
 *
 * @module
 */

/**
 * @typedef {object} StoredWindow One window of motion, as it was measured.
 * @property {number} [id] given by the store
 * @property {number} startMs of its first row
 * @property {Float32Array} x (128, 6): m/s² with gravity and rad/s, not normalized
 * @property {string | null} label null: not labelled
 * @property {string} [personal] the person's own activity that it is of, where it counts as `label` for the federation
 * @property {string} session windows of one session follow each other
 */

/**
 * @typedef {object} Store What the phone keeps: IndexedDB in a browser, a Map in tests. Whatever was awaited is there
 *   after a reload. Values are structured-cloneable (a CryptoKey is, also one that is not extractable).
 * @property {(key: string) => Promise<any>} get undefined where there is none
 * @property {(key: string, value: any) => Promise<void>} set
 * @property {(values: Record<string, any>) => Promise<void>} setAll in one transaction: all of them or none
 * @property {(key: string) => Promise<void>} remove
 * @property {(windows: StoredWindow[]) => Promise<void>} addWindows
 * @property {() => Promise<StoredWindow[]>} windows by `startMs`; nobody writes into them
 * @property {(ids: Iterable<number>) => Promise<boolean>} has whether all of these windows are there still
 * @property {(fromMs: number, toMs: number, label: string | null) => Promise<unknown>} label windows whose middle is in it
 * @property {(fromMs: number, toMs: number) => Promise<unknown>} deleteWindows that reach into it
 * @property {() => Promise<void>} clear everything
 */

/**
 * @typedef {object} Examples
 * @property {Float32Array} x (n, 128, 6) as the network takes it: normalized where the plan says `client`
 * @property {Int32Array} y (n) indices of the plan's labels
 * @property {Float64Array} startS (n) when each begins, in seconds; sessions whose clocks overlapped are moved apart
 * @property {Int32Array} session (n) number of the session
 */

/** @typedef {{mean: Float32Array, std: Float32Array}} Normalization of each channel (6): (x − mean) / std */

/** @typedef {{count: number, newest: number}} Recorded how many windows, and the store's id of the last; 0: there is none */

/**
 * @typedef {object} Prepared What a phone learns from and checks with.
 * @property {Examples} train
 * @property {Examples} holdout the last windows of each class, at most so many as a native device judges by
 * @property {Normalization | null} normalization of the training windows; null: none
 * @property {Float32Array} unlabelled (n, 128, 6) some windows of a phone where nothing is labelled; else empty
 * @property {Recorded} recorded which windows there are where nothing is labelled; else none
 * @property {string[]} keys of the training windows: id and label of each, so that a relabelled one is another
 * @property {number[]} ids of the windows that all of it was made of
 */

/**
 * @typedef {object} NetworkModel What a phone recognizes by in a federation in rounds, a whole network; structured-cloneable.
 * @property {"shared_network" | "personal_network" | "midway_network"} head whose it is
 * @property {import("./training/tensors.js").Tensors} values of the network, by the program's paths
 * @property {number} version that it is of; of one that the phone trained the round
 * @property {string} sha256 of the program that runs it
 */

/** @typedef {HeadModel | NetworkModel} Model What a phone recognizes by. */

/**
 * @typedef {object} HeadModel What a phone recognizes by in a continuous federation, a linear head on embeddings;
 *   structured-cloneable.
 * @property {import("./learning/heads.js").HeadName} head which one of the exchange it is
 * @property {Float64Array} weight (C × D)
 * @property {Float64Array} bias (C)
 * @property {number} version whose shared sums it was solved of
 * @property {string} sha256 of the network whose embeddings it is of
 */

/**
 * @typedef {object} TrainingHost training/host.js: rounds and answers with a federation's program.
 * @property {(job: import("./training/host.js").RoundJob, onProgress: (progress: import("./training/host.js").RoundProgress) => void,
 *   signal: AbortSignal) => Promise<import("./training/host.js").RoundResult>} train until it is done, the time is over, or
 *   the signal ends it
 * @property {(program: import("./training/host.js").ProgramSource, broadcast: Uint8Array,
 *   client: import("./training/tensors.js").Tensors | null) => Promise<import("./training/tensors.js").Tensors | null>} sharedNetwork
 *   that the server's model serves with; null: there is none, or nobody has trained it
 * @property {(program: import("./training/host.js").ProgramSource, network: import("./training/tensors.js").Tensors,
 *   x: Float32Array) => Promise<Float32Array>} logits (n, C) of windows
 */

/**
 * @typedef {object} Verdict
 * @property {"adopted" | "kept" | "refused" | "failed"} answer as in `AdoptionReport`
 * @property {number | null} score macro F1 on the holdout
 * @property {number | null} trivial macro F1 of always the most frequent class there; null: it cannot tell
 * @property {string} [why] a sentence for the person; none: an older app's verdict
 * @property {string} reason which model became what, and why
 * @property {"global" | "personalized"} source of the candidate
 * @property {Model | null} model the one to be used now: the candidate, or still the present one
 * @property {Compared} compared what the holdout says of each head
 */

/**
 * @typedef {object} Compared
 * @property {string} metric @property {number} windows @property {number} classes
 * @property {{head: Model["head"], name: string, score: number | null, gain: number | null}[]} models gain: expected, over
 *   the shared model; null: of itself, or not known
 */

/**
 * @typedef {object} Choice Which of several heads is to be used?
 * @property {import("./learning/heads.js").Exchange} exchange that they are solved of
 * @property {Model | null} present the one in use
 * @property {Prepared} prepared
 * @property {{train: Float32Array, holdout: Float32Array, unlabelled: Float32Array}} embeddings (n × D) of `prepared`
 * @property {readonly string[]} labels of the plan
 * @property {readonly number[]} gravity columns of the embedding that tell how the phone lies; may be none
 * @property {import("./learning/heads.js").Rules} [rules]
 */

/** @typedef {{verdict: Verdict, heads: HeadModel[]}} Chosen */

/**
 * @typedef {object} Learner learning/learner.js: everything but embeddings is computed here.
 * @property {(windows: StoredWindow[], plan: Plan) => Prepared} prepare
 * @property {(embeddings: Float32Array, y: Int32Array, classes: number, clip: number) =>
 *   Promise<import("./learning/ridge.js").FixedSums & {gram: Int32Array, moment: Int32Array}>} sums that a phone sends
 * @property {(choice: Choice) => Promise<Chosen>} choose among the heads of an exchange
 * @property {(heads: readonly HeadModel[], holdout: Examples, embeddings: Float32Array, labels: readonly string[]) =>
 *   Record<string, number>} measure what an update says of them
 */

/**
 * @typedef {object} Embedder learning/embedder.js: the network below the heads, behind ONNX Runtime.
 * @property {(file: Uint8Array, sha256: string, plan?: Plan) => Promise<Columns>} load once for each file; a file that
 *   does not fit the plan is refused; returns what it says of its columns
 * @property {(x: Float32Array, onProgress?: (done: number, all: number) => void) => Promise<Float32Array>} embed
 *   (n, 128, 6) → (n, D); the same array is computed once
 */

/**
 * @typedef {object} Columns of an embedding; may be none
 * @property {readonly number[]} orientationFree the same however the phone lies
 * @property {readonly number[]} gravity that tell how the phone lies
 * @property {readonly number[]} [acceleration] that a phone without a gyroscope has
 */

/** @typedef {import("./protocol/messages.generated.js").Plan} Plan The federation's, as it is announced. */

/**
 * @typedef {object} AgentState What the pages show.
 * @property {"elsewhere" | "waiting_for_approval" | "connecting" | "collecting" | "ready" | "training" | "uploading" | "idle" |
 *   "withdrawn" | "finished" | "not_taking_part" | "stopped"} name
 * @property {boolean} connected whether the stream is open
 * @property {import("./protocol/backoff.js").Retry | null} retry while the server seems to be gone, and is left in peace
 * @property {number} version that was published last; 0 before the first
 * @property {boolean} takesPart false: its person has withdrawn it
 * @property {number} examples that it would learn from
 * @property {string} reason in words, for the person: why it waits, or does not take part; else empty
 * @property {Plan | null} plan
 * @property {Model | null} model the one in use
 * @property {Verdict | null} verdict on the last model
 * @property {import("./protocol/agent_state.js").Answered[]} uploads newest last
 * @property {string} required of any plan, in words; empty: nothing yet
 * @property {Partial<import("./protocol/promises.js").Promises> | null} requires what its person requires besides
 * @property {string} publicKey of this phone, as base64, by which the server and those who vouch for it know it
 * @property {string} offered what a refused plan promises, in words; empty: none is refused
 * @property {boolean} isContinuous false: the federation trains in rounds
 * @property {import("./protocol/round_worker.js").RoundProgress | null} progress of the round that is being trained
 */

export {};
