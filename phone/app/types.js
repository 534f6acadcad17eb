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
 * @property {Float32Array} x (n, 128, 6) as the light model takes it: normalized where the plan says `client`
 * @property {Int32Array} y (n) indices of the plan's labels
 * @property {Float64Array} startS (n) when each begins, in seconds; sessions whose clocks overlapped are moved apart
 * @property {Int32Array} session (n) number of the session
 */

/** @typedef {{mean: Float32Array, std: Float32Array}} Normalization of each channel (6): (x − mean) / std */

/**
 * @typedef {object} Prepared What a phone learns from and checks with.
 * @property {Examples} train
 * @property {Examples} holdout the last windows of each class, at most so many as a native device judges by
 * @property {Normalization | null} normalization of the training windows; null: none
 * @property {number} windowS length of a window in seconds
 * @property {number[]} ids of the windows that all of it was made of
 */

/**
 * @typedef {object} Prototypes A model: the nearest of the known prototypes names the class.
 * @property {"prototypes" | "class_means"} [by] the server's prototypes, where it is left out, or the phone's own means
 * @property {Float32Array} prototypes (C, D)
 * @property {Float32Array} known (C) above 0 where a class has a prototype
 * @property {number} round that made it
 * @property {string} sha256 of the light model whose embeddings it is of
 * @property {number} [temperature] by which probabilities are shown; 1 where it is left out. It changes no answer
 */

/**
 * @typedef {object} HeadModel A model: softmax regression on embeddings, learnt on the phone.
 * @property {"head"} by
 * @property {Float64Array} weight (C, D)
 * @property {Float64Array} bias (C) −Infinity for a class that was not learnt
 * @property {number} round after which it was learnt
 * @property {string} sha256 of the light model whose embeddings it is of
 */

/** @typedef {Prototypes | HeadModel} Model What a phone recognizes by; structured-cloneable. */

/**
 * @typedef {object} Verdict
 * @property {"adopted" | "kept" | "refused" | "failed" | "undecided"} answer as in `AdoptionReport`
 * @property {number | null} score macro F1 on the holdout
 * @property {number | null} trivial macro F1 of always the most frequent class there; null: it cannot tell
 * @property {string} reason
 * @property {string} [why] the model in use is used: the reason of the last verdict, where several were reached
 * @property {"global" | "personalized"} source of the candidate
 * @property {Model | null} model the one to be used now: the candidate, another one, or still the present one
 * @property {import("./learning/acceptance.js").Compared | null} compared what the holdout says of each model that ran
 */

/**
 * @typedef {object} Question Is a model to be used?
 * @property {Model} candidate
 * @property {Model | null} present the one in use
 * @property {readonly Model[]} [others] that may be used in place of the candidate
 * @property {Examples} holdout of `Prepared`
 * @property {Float32Array} embeddings (n, D) of the holdout
 * @property {readonly string[]} labels of the plan
 * @property {VersionScore | null} score what others have measured of the candidate, or of what it began from
 * @property {number} [release] number of the rollout that gave the candidate; 0, or left out: none
 * @property {import("./learning/cross_validation.js").CrossValidation | null} [crossed] of candidate and others, where
 *   they were learnt here and the holdout is small
 */

/**
 * @typedef {object} Choice Which of several models is to be used?
 * @property {Prototypes} candidate that the server sent
 * @property {Model | null} present the one in use
 * @property {Prepared} prepared
 * @property {{train: Float32Array, holdout: Float32Array}} embeddings (n, D) of both
 * @property {readonly string[]} labels of the plan
 * @property {VersionScore | null} score what others have measured of the candidate
 * @property {number} [release] number of the rollout that gave the candidate, which is judged alone then; 0: none
 */

/**
 * @typedef {object} Learner learning/learner.js: everything but embeddings is computed here.
 * @property {(windows: StoredWindow[], plan: Plan) => Prepared} prepare
 * @property {(embeddings: Float32Array, y: Int32Array, classes: number, dim: number) =>
 *   {prototypes: Float32Array, counts: Float32Array}} classMeans (C, D) and (C)
 * @property {(model: Model, holdout: Examples, embeddings: Float32Array, labels: readonly string[]) =>
 *   Record<string, number>} measure what an update says of the model that it is about
 * @property {(question: Question) => Verdict} judge
 * @property {(prepared: Prepared, embeddings: {train: Float32Array, holdout: Float32Array}, classes: number) =>
 *   Promise<import("./learning/cross_validation.js").CrossValidation | null>} crossValidation of what is learnt here
 * @property {(choice: Choice) => Promise<{model: Model | null, verdicts: Verdict[]}>} choose the server's
 *   prototypes, or what the phone has learnt itself
 */

/**
 * @typedef {object} Embedder learning/embedder.js: the light model behind ONNX Runtime.
 * @property {(file: Uint8Array, sha256: string, plan?: Plan) => Promise<void>} load once for each file; a file that
 *   does not fit the plan is refused
 * @property {(x: Float32Array, onProgress?: (done: number, all: number) => void) => Promise<Float32Array>} embed
 *   (n, 128, 6) → (n, D); the same array is computed once
 */

/** @typedef {import("./protocol/messages.generated.js").VersionScore} VersionScore What others have measured. */
/** @typedef {import("./protocol/messages.generated.js").Plan} Plan The federation's, as it is announced. */

/**
 * @typedef {object} AgentState What the pages show.
 * @property {"elsewhere" | "waiting_for_approval" | "connecting" | "collecting" | "ready" | "training" | "uploading" | "idle" |
 *   "finished" | "not_taking_part" | "stopped"} name
 * @property {boolean} connected whether the stream is open
 * @property {import("./protocol/backoff.js").Retry | null} retry while the server seems to be gone, and is left in peace
 * @property {number} round @property {number} rounds of the plan; 0 before the first announcement
 * @property {number} examples that it would learn from
 * @property {string} reason in words, for the person: why it waits, or does not take part; else empty
 * @property {Plan | null} plan
 * @property {Model | null} model the one in use
 * @property {Verdict | null} verdict on the last model
 * @property {{round: number, answer: "accepted" | "refused", reason: string, atMs: number}[]} uploads newest last
 */

export {};
