BEGIN TRANSACTION;
CREATE TABLE adoptions (
	id INTEGER NOT NULL, 
	federation_id INTEGER NOT NULL, 
	device_id INTEGER NOT NULL, 
	round_number INTEGER NOT NULL, 
	source VARCHAR(16) NOT NULL, 
	answer VARCHAR(16) NOT NULL, 
	score DOUBLE, 
	trivial DOUBLE, 
	reason TEXT NOT NULL, 
	recorded_at DOUBLE NOT NULL, 
	CONSTRAINT pk_adoptions PRIMARY KEY (id), 
	CONSTRAINT fk_adoptions_device_id FOREIGN KEY(device_id) REFERENCES devices (id), 
	CONSTRAINT fk_adoptions_federation_id FOREIGN KEY(federation_id) REFERENCES federations (id), 
	CONSTRAINT uq_adoptions_device_id_round_number_source UNIQUE (device_id, round_number, source)
);
INSERT INTO "adoptions" VALUES(1,1,1,10,'1source','1answer',1.5,1.5,'1reason',1.5);
INSERT INTO "adoptions" VALUES(2,2,2,20,'2source','2answer',NULL,NULL,'2reason',2.5);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0020');
CREATE TABLE audit_entries (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at DOUBLE NOT NULL, 
	actor VARCHAR(96) NOT NULL, 
	address VARCHAR(64) NOT NULL, 
	action VARCHAR(64) NOT NULL, 
	federation VARCHAR(64) NOT NULL, 
	device VARCHAR(64) NOT NULL, 
	detail TEXT NOT NULL, 
	count INTEGER NOT NULL, 
	digest VARCHAR(64) NOT NULL
);
INSERT INTO "audit_entries" VALUES(1,1.5,'1actor','1address','1action','1federation','1device','1detail',10,'1digest');
INSERT INTO "audit_entries" VALUES(2,2.5,'2actor','2address','2action','2federation','2device','2detail',20,'2digest');
CREATE TABLE contributions (
	id INTEGER NOT NULL, 
	federation_id INTEGER NOT NULL, 
	device_id INTEGER, 
	sequence INTEGER NOT NULL, 
	update_id VARCHAR(64) NOT NULL, 
	update_sha256 VARCHAR(64) NOT NULL, 
	sha256 VARCHAR(64), 
	size INTEGER, 
	examples INTEGER NOT NULL, 
	class_counts JSON, 
	received_at DOUBLE NOT NULL, 
	changed_at DOUBLE, 
	round_id INTEGER, 
	taken_sha256 VARCHAR(64), 
	taken_update_id VARCHAR(64), 
	published_sha256 VARCHAR(64), 
	published_version INTEGER, 
	CONSTRAINT pk_contributions PRIMARY KEY (id), 
	CONSTRAINT fk_contributions_device_id FOREIGN KEY(device_id) REFERENCES devices (id), 
	CONSTRAINT fk_contributions_federation_id FOREIGN KEY(federation_id) REFERENCES federations (id), 
	CONSTRAINT fk_contributions_round_id FOREIGN KEY(round_id) REFERENCES rounds (id), 
	CONSTRAINT uq_contributions_device_id UNIQUE (device_id)
);
INSERT INTO "contributions" VALUES(1,1,1,10,'1update_id','1update_sha256','1sha256',10,10,'{"k": 1}',1.5,1.5,1,'1taken_sha256','1taken_update_id','1published_sha256',10);
INSERT INTO "contributions" VALUES(2,2,2,20,'2update_id','2update_sha256',NULL,NULL,20,'null',2.5,NULL,2,NULL,NULL,NULL,NULL);
CREATE TABLE credentials (
	id INTEGER NOT NULL, 
	prefix VARCHAR(16) NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	scopes JSON NOT NULL, 
	federation_id INTEGER, 
	device_id INTEGER, 
	secret_sha256 VARCHAR(64) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE, 
	used_at DOUBLE, 
	revoked_at DOUBLE, 
	held_at DOUBLE, 
	CONSTRAINT pk_credentials PRIMARY KEY (id), 
	CONSTRAINT fk_credentials_device_id FOREIGN KEY(device_id) REFERENCES devices (id), 
	CONSTRAINT fk_credentials_federation_id FOREIGN KEY(federation_id) REFERENCES federations (id), 
	CONSTRAINT uq_credentials_prefix UNIQUE (prefix)
);
INSERT INTO "credentials" VALUES(1,'1prefix','1name','{"k": 1}',1,1,'1secret_sha256',1.5,1.5,1.5,1.5,1.5);
INSERT INTO "credentials" VALUES(2,'2prefix','2name','{"k": 2}',2,2,'2secret_sha256',2.5,NULL,NULL,NULL,NULL);
CREATE TABLE device_tags (
	device_id INTEGER NOT NULL, 
	tag VARCHAR(64) NOT NULL, 
	CONSTRAINT pk_device_tags PRIMARY KEY (device_id, tag), 
	CONSTRAINT fk_device_tags_device_id FOREIGN KEY(device_id) REFERENCES devices (id)
);
INSERT INTO "device_tags" VALUES(1,'1tag');
INSERT INTO "device_tags" VALUES(2,'2tag');
CREATE TABLE devices (
	id INTEGER NOT NULL, 
	federation_id INTEGER NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	examples INTEGER NOT NULL, 
	detail TEXT NOT NULL, 
	enrolled_at DOUBLE NOT NULL, 
	seen_at DOUBLE NOT NULL, 
	enrolment VARCHAR(16) DEFAULT 'open' NOT NULL, 
	public_key VARCHAR(44), 
	claimed_at BIGINT, 
	cloned_at DOUBLE, 
	refused_updates INTEGER DEFAULT '0' NOT NULL, 
	suspended_at DOUBLE, 
	suspension_reason TEXT DEFAULT '' NOT NULL, 
	missed_rounds INTEGER DEFAULT '0' NOT NULL, 
	left_out_until DOUBLE, 
	adoption VARCHAR(16), 
	adoption_reason TEXT DEFAULT '' NOT NULL, 
	plan_refusal TEXT DEFAULT '' NOT NULL, 
	refused_model VARCHAR(64) DEFAULT '' NOT NULL, 
	model_refusal TEXT DEFAULT '' NOT NULL, 
	voucher TEXT DEFAULT '' NOT NULL, 
	voucher_expires_at BIGINT, 
	CONSTRAINT pk_devices PRIMARY KEY (id), 
	CONSTRAINT fk_devices_federation_id FOREIGN KEY(federation_id) REFERENCES federations (id), 
	CONSTRAINT uq_devices_federation_id_name UNIQUE (federation_id, name)
);
INSERT INTO "devices" VALUES(1,1,'1name','1state',10,'1detail',1.5,1.5,'1enrolment','1public_key',10,1.5,10,1.5,'1suspension_reason',10,1.5,'1adoption','1adoption_reason','1plan_refusal','1refused_model','1model_refusal','1voucher',10);
INSERT INTO "devices" VALUES(2,2,'2name','2state',20,'2detail',2.5,2.5,'2enrolment',NULL,NULL,NULL,20,NULL,'2suspension_reason',20,NULL,NULL,'2adoption_reason','2plan_refusal','2refused_model','2model_refusal','2voucher',NULL);
CREATE TABLE ended_access (
	id INTEGER NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	subject VARCHAR(64) NOT NULL, 
	federation VARCHAR(64) NOT NULL, 
	until DOUBLE, 
	CONSTRAINT pk_ended_access PRIMARY KEY (id)
);
INSERT INTO "ended_access" VALUES(1,'1kind','1subject','1federation',1.5);
INSERT INTO "ended_access" VALUES(2,'2kind','2subject','2federation',NULL);
CREATE TABLE enrolment_tokens (
	id INTEGER NOT NULL, 
	federation_id INTEGER NOT NULL, 
	token_sha256 VARCHAR(64) NOT NULL, 
	device VARCHAR(64), 
	auto_approve BOOLEAN NOT NULL, 
	tags JSON DEFAULT '[]' NOT NULL, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	used_at DOUBLE, 
	used_by VARCHAR(64), 
	revoked_at DOUBLE, 
	held_at DOUBLE, 
	CONSTRAINT pk_enrolment_tokens PRIMARY KEY (id), 
	CONSTRAINT fk_enrolment_tokens_federation_id FOREIGN KEY(federation_id) REFERENCES federations (id), 
	CONSTRAINT uq_enrolment_tokens_token_sha256 UNIQUE (token_sha256)
);
INSERT INTO "enrolment_tokens" VALUES(1,1,'1token_sha256','1device',1,'{"k": 1}',1.5,1.5,1.5,'1used_by',1.5,1.5);
INSERT INTO "enrolment_tokens" VALUES(2,2,'2token_sha256',NULL,0,'{"k": 2}',2.5,2.5,NULL,NULL,NULL,NULL);
CREATE TABLE events (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	federation_id INTEGER NOT NULL, 
	kind VARCHAR(32) NOT NULL, 
	round_number INTEGER NOT NULL, 
	device VARCHAR(64) NOT NULL, 
	detail TEXT NOT NULL, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT fk_events_federation_id FOREIGN KEY(federation_id) REFERENCES federations (id)
);
INSERT INTO "events" VALUES(1,1,'1kind',10,'1device','1detail',1.5);
INSERT INTO "events" VALUES(2,2,'2kind',20,'2device','2detail',2.5);
CREATE TABLE federations (
	id INTEGER NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	instance VARCHAR(32) DEFAULT '' NOT NULL, 
	"plan" JSON NOT NULL, 
	revision INTEGER DEFAULT '0' NOT NULL, 
	upload_schema JSON NOT NULL, 
	sum_layout JSON, 
	status VARCHAR(16) NOT NULL, 
	created_at DOUBLE NOT NULL, 
	feature_model_sha256 VARCHAR(64), 
	feature_model_size INTEGER, 
	program_state VARCHAR(16) DEFAULT 'none' NOT NULL, 
	program_note TEXT DEFAULT '' NOT NULL, 
	program_sha256 VARCHAR(64), 
	program_size INTEGER, 
	stable_note TEXT DEFAULT '' NOT NULL, 
	regression TEXT DEFAULT '' NOT NULL, 
	revoked_identities TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_federations PRIMARY KEY (id), 
	CONSTRAINT uq_federations_name UNIQUE (name)
);
INSERT INTO "federations" VALUES(1,'1name','1instance','{"k": 1}',10,'{"k": 1}','{"k": 1}','1status',1.5,'1feature_model_sha256',10,'1program_state','1program_note','1program_sha256',10,'1stable_note','1regression','1revoked_identities');
INSERT INTO "federations" VALUES(2,'2name','2instance','{"k": 2}',20,'{"k": 2}','null','2status',2.5,NULL,NULL,'2program_state','2program_note',NULL,NULL,'2stable_note','2regression','2revoked_identities');
CREATE TABLE idempotent_requests (
	caller VARCHAR(32) NOT NULL, 
	"key" VARCHAR(128) NOT NULL, 
	request_sha256 VARCHAR(64) NOT NULL, 
	status INTEGER, 
	headers JSON NOT NULL, 
	body TEXT, 
	created_at DOUBLE NOT NULL, 
	CONSTRAINT pk_idempotent_requests PRIMARY KEY (caller, "key")
);
INSERT INTO "idempotent_requests" VALUES('1caller','1key','1request_sha256',10,'{"k": 1}','1body',1.5);
INSERT INTO "idempotent_requests" VALUES('2caller','2key','2request_sha256',NULL,'{"k": 2}',NULL,2.5);
CREATE TABLE leases (
	federation_id INTEGER NOT NULL, 
	holder VARCHAR(128) NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	notifications BIGINT NOT NULL, 
	CONSTRAINT pk_leases PRIMARY KEY (federation_id), 
	CONSTRAINT fk_leases_federation_id FOREIGN KEY(federation_id) REFERENCES federations (id)
);
INSERT INTO "leases" VALUES(1,'1holder',1.5,10);
INSERT INTO "leases" VALUES(2,'2holder',2.5,20);
CREATE TABLE ledger (
	id INTEGER NOT NULL, 
	ledger VARCHAR(32), 
	size INTEGER NOT NULL, 
	CONSTRAINT pk_ledger PRIMARY KEY (id)
);
INSERT INTO "ledger" VALUES(1,NULL,0);
CREATE TABLE masked_contributions (
	device_id INTEGER NOT NULL, 
	federation_id INTEGER NOT NULL, 
	version INTEGER, 
	sequence INTEGER DEFAULT '0' NOT NULL, 
	reported INTEGER DEFAULT '0' NOT NULL, 
	seen INTEGER DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_masked_contributions PRIMARY KEY (device_id), 
	CONSTRAINT fk_masked_contributions_device_id FOREIGN KEY(device_id) REFERENCES devices (id), 
	CONSTRAINT fk_masked_contributions_federation_id FOREIGN KEY(federation_id) REFERENCES federations (id)
);
INSERT INTO "masked_contributions" VALUES(1,1,10,10,10,10);
INSERT INTO "masked_contributions" VALUES(2,2,NULL,20,20,20);
CREATE TABLE metrics (
	id INTEGER NOT NULL, 
	federation_id INTEGER NOT NULL, 
	device_id INTEGER NOT NULL, 
	round_number INTEGER NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	value DOUBLE NOT NULL, 
	recorded_at DOUBLE NOT NULL, 
	CONSTRAINT pk_metrics PRIMARY KEY (id), 
	CONSTRAINT fk_metrics_device_id FOREIGN KEY(device_id) REFERENCES devices (id), 
	CONSTRAINT fk_metrics_federation_id FOREIGN KEY(federation_id) REFERENCES federations (id), 
	CONSTRAINT uq_metrics_federation_id_round_number_device_id_name UNIQUE (federation_id, round_number, device_id, name)
);
INSERT INTO "metrics" VALUES(1,1,1,10,'1name',1.5,1.5);
INSERT INTO "metrics" VALUES(2,2,2,20,'2name',2.5,2.5);
CREATE TABLE model_aliases (
	federation_id INTEGER NOT NULL, 
	alias VARCHAR(16) NOT NULL, 
	version_id INTEGER NOT NULL, 
	note TEXT DEFAULT '' NOT NULL, 
	held_at INTEGER DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_model_aliases PRIMARY KEY (federation_id, alias), 
	CONSTRAINT fk_model_aliases_federation_id FOREIGN KEY(federation_id) REFERENCES federations (id), 
	CONSTRAINT fk_model_aliases_version_id FOREIGN KEY(version_id) REFERENCES model_versions (id)
);
INSERT INTO "model_aliases" VALUES(1,'1alias',1,'1note',10);
INSERT INTO "model_aliases" VALUES(2,'2alias',2,'2note',20);
CREATE TABLE model_versions (
	id INTEGER NOT NULL, 
	federation_id INTEGER NOT NULL, 
	version INTEGER NOT NULL, 
	round_number INTEGER NOT NULL, 
	state_sha256 VARCHAR(64) NOT NULL, 
	broadcast_sha256 VARCHAR(64) NOT NULL, 
	broadcast_size INTEGER NOT NULL, 
	created_at DOUBLE NOT NULL, 
	deleted_at DOUBLE, 
	gains JSON, 
	withdrawn TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_model_versions PRIMARY KEY (id), 
	CONSTRAINT fk_model_versions_federation_id FOREIGN KEY(federation_id) REFERENCES federations (id), 
	CONSTRAINT uq_model_versions_federation_id_version UNIQUE (federation_id, version)
);
INSERT INTO "model_versions" VALUES(1,1,10,10,'1state_sha256','1broadcast_sha256',10,1.5,1.5,'{"k": 1}','1withdrawn');
INSERT INTO "model_versions" VALUES(2,2,20,20,'2state_sha256','2broadcast_sha256',20,2.5,NULL,'null','2withdrawn');
CREATE TABLE participations (
	round_id INTEGER NOT NULL, 
	device_id INTEGER NOT NULL, 
	invited BOOLEAN NOT NULL, 
	outcome VARCHAR(16) NOT NULL, 
	rounds_late INTEGER, 
	broadcast_sha256 VARCHAR(64), 
	broadcast_size INTEGER, 
	CONSTRAINT pk_participations PRIMARY KEY (round_id, device_id), 
	CONSTRAINT fk_participations_device_id FOREIGN KEY(device_id) REFERENCES devices (id), 
	CONSTRAINT fk_participations_round_id FOREIGN KEY(round_id) REFERENCES rounds (id)
);
INSERT INTO "participations" VALUES(1,1,1,'1outcome',10,'1broadcast_sha256',10);
INSERT INTO "participations" VALUES(2,2,0,'2outcome',NULL,NULL,NULL);
CREATE TABLE rollout_devices (
	rollout_id INTEGER NOT NULL, 
	device_id INTEGER NOT NULL, 
	wave INTEGER NOT NULL, 
	answer VARCHAR(16) NOT NULL, 
	score DOUBLE, 
	reason TEXT NOT NULL, 
	notified_at DOUBLE NOT NULL, 
	answered_at DOUBLE, 
	CONSTRAINT pk_rollout_devices PRIMARY KEY (rollout_id, device_id), 
	CONSTRAINT fk_rollout_devices_device_id FOREIGN KEY(device_id) REFERENCES devices (id), 
	CONSTRAINT fk_rollout_devices_rollout_id FOREIGN KEY(rollout_id) REFERENCES rollouts (id)
);
INSERT INTO "rollout_devices" VALUES(1,1,10,'1answer',1.5,'1reason',1.5,1.5);
INSERT INTO "rollout_devices" VALUES(2,2,20,'2answer',NULL,'2reason',2.5,NULL);
CREATE TABLE rollouts (
	id INTEGER NOT NULL, 
	federation_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	version_id INTEGER NOT NULL, 
	settings JSON NOT NULL, 
	serial INTEGER NOT NULL, 
	phase VARCHAR(16) NOT NULL, 
	wave INTEGER NOT NULL, 
	wave_started_at DOUBLE NOT NULL, 
	members INTEGER NOT NULL, 
	successes INTEGER NOT NULL, 
	failures INTEGER NOT NULL, 
	reason TEXT NOT NULL, 
	last_checked_device_id INTEGER NOT NULL, 
	reach INTEGER DEFAULT '0' NOT NULL, 
	forced TEXT DEFAULT '' NOT NULL, 
	started_at DOUBLE NOT NULL, 
	ended_at DOUBLE, 
	CONSTRAINT pk_rollouts PRIMARY KEY (id), 
	CONSTRAINT fk_rollouts_federation_id FOREIGN KEY(federation_id) REFERENCES federations (id), 
	CONSTRAINT fk_rollouts_version_id FOREIGN KEY(version_id) REFERENCES model_versions (id), 
	CONSTRAINT uq_rollouts_federation_id_number UNIQUE (federation_id, number)
);
INSERT INTO "rollouts" VALUES(1,1,10,1,'{"k": 1}',10,'1phase',10,1.5,10,10,10,'1reason',10,10,'1forced',1.5,1.5);
INSERT INTO "rollouts" VALUES(2,2,20,2,'{"k": 2}',20,'2phase',20,2.5,20,20,20,'2reason',20,20,'2forced',2.5,NULL);
CREATE TABLE rounds (
	id INTEGER NOT NULL, 
	federation_id INTEGER NOT NULL, 
	number INTEGER NOT NULL, 
	phase VARCHAR(16) NOT NULL, 
	paused BOOLEAN NOT NULL, 
	deadline_passed BOOLEAN NOT NULL, 
	reason TEXT NOT NULL, 
	pending INTEGER NOT NULL, 
	received INTEGER NOT NULL, 
	noise_multiplier DOUBLE, 
	epsilon DOUBLE, 
	capped INTEGER DEFAULT '0' NOT NULL, 
	excluded INTEGER DEFAULT '0' NOT NULL, 
	norms JSON, 
	base_version_id INTEGER NOT NULL, 
	deadline_at DOUBLE, 
	opened_at DOUBLE NOT NULL, 
	closed_at DOUBLE, 
	CONSTRAINT pk_rounds PRIMARY KEY (id), 
	CONSTRAINT fk_rounds_base_version_id FOREIGN KEY(base_version_id) REFERENCES model_versions (id), 
	CONSTRAINT fk_rounds_federation_id FOREIGN KEY(federation_id) REFERENCES federations (id), 
	CONSTRAINT uq_rounds_federation_id_number UNIQUE (federation_id, number)
);
INSERT INTO "rounds" VALUES(1,1,10,'1phase',1,1,'1reason',10,10,1.5,1.5,10,10,'{"k": 1}',1,1.5,1.5,1.5);
INSERT INTO "rounds" VALUES(2,2,20,'2phase',0,0,'2reason',20,20,NULL,NULL,20,20,'null',2,NULL,2.5,NULL);
CREATE TABLE scores (
	federation_id INTEGER NOT NULL, 
	round_number INTEGER NOT NULL, 
	name VARCHAR(64) NOT NULL, 
	devices INTEGER NOT NULL, 
	total DOUBLE NOT NULL, 
	squares DOUBLE NOT NULL, 
	measured INTEGER NOT NULL, 
	measured_total DOUBLE NOT NULL, 
	trivial DOUBLE NOT NULL, 
	working INTEGER NOT NULL, 
	CONSTRAINT pk_scores PRIMARY KEY (federation_id, round_number, name), 
	CONSTRAINT fk_scores_federation_id FOREIGN KEY(federation_id) REFERENCES federations (id)
);
INSERT INTO "scores" VALUES(1,1,'1name',10,1.5,1.5,10,1.5,1.5,10);
INSERT INTO "scores" VALUES(2,2,'2name',20,2.5,2.5,20,2.5,2.5,20);
CREATE TABLE secure_sum_devices (
	round_id INTEGER NOT NULL, 
	device_id INTEGER NOT NULL, 
	identity BLOB NOT NULL, 
	keys BLOB NOT NULL, 
	shares BLOB NOT NULL, 
	vector BLOB NOT NULL, 
	signature BLOB NOT NULL, 
	opened BLOB NOT NULL, 
	uploaded JSON NOT NULL, 
	sequence INTEGER DEFAULT '0' NOT NULL, 
	CONSTRAINT pk_secure_sum_devices PRIMARY KEY (round_id, device_id), 
	CONSTRAINT fk_secure_sum_devices_device_id FOREIGN KEY(device_id) REFERENCES devices (id), 
	CONSTRAINT fk_secure_sum_devices_round_id FOREIGN KEY(round_id) REFERENCES rounds (id)
);
INSERT INTO "secure_sum_devices" VALUES(1,1,X'01',X'01',X'01',X'01',X'01',X'01','{"k": 1}',10);
INSERT INTO "secure_sum_devices" VALUES(2,2,X'02',X'02',X'02',X'02',X'02',X'02','{"k": 2}',20);
CREATE TABLE secure_sums (
	round_id INTEGER NOT NULL, 
	stage VARCHAR(16) NOT NULL, 
	request BLOB NOT NULL, 
	members BLOB NOT NULL, 
	dealers JSON NOT NULL, 
	included BLOB NOT NULL, 
	total BLOB NOT NULL, 
	reason TEXT NOT NULL, 
	listed_devices INTEGER NOT NULL, 
	summed_devices INTEGER NOT NULL, 
	deadline_at DOUBLE, 
	shared_sha256 VARCHAR(64), 
	shared_size INTEGER, 
	finding TEXT DEFAULT '' NOT NULL, 
	retry TEXT DEFAULT '' NOT NULL, 
	CONSTRAINT pk_secure_sums PRIMARY KEY (round_id), 
	CONSTRAINT fk_secure_sums_round_id FOREIGN KEY(round_id) REFERENCES rounds (id)
);
INSERT INTO "secure_sums" VALUES(1,'1stage',X'01',X'01','{"k": 1}',X'01',X'01','1reason',10,10,1.5,'1shared_sha256',10,'1finding','1retry');
INSERT INTO "secure_sums" VALUES(2,'2stage',X'02',X'02','{"k": 2}',X'02',X'02','2reason',20,20,NULL,NULL,NULL,'2finding','2retry');
CREATE TABLE server_epoch (
	id INTEGER NOT NULL, 
	epoch INTEGER NOT NULL, 
	restored_at DOUBLE, 
	CONSTRAINT pk_server_epoch PRIMARY KEY (id)
);
INSERT INTO "server_epoch" VALUES(1,1,NULL);
CREATE TABLE updates (
	id INTEGER NOT NULL, 
	federation_id INTEGER NOT NULL, 
	device_id INTEGER NOT NULL, 
	round_id INTEGER, 
	update_id VARCHAR(64) NOT NULL, 
	base_round INTEGER NOT NULL, 
	status VARCHAR(16) NOT NULL, 
	reason TEXT NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	size INTEGER NOT NULL, 
	manifest JSON NOT NULL, 
	norms JSON, 
	counted_examples INTEGER, 
	received_at DOUBLE NOT NULL, 
	CONSTRAINT pk_updates PRIMARY KEY (id), 
	CONSTRAINT fk_updates_device_id FOREIGN KEY(device_id) REFERENCES devices (id), 
	CONSTRAINT fk_updates_federation_id FOREIGN KEY(federation_id) REFERENCES federations (id), 
	CONSTRAINT fk_updates_round_id FOREIGN KEY(round_id) REFERENCES rounds (id), 
	CONSTRAINT uq_updates_device_id_update_id UNIQUE (device_id, update_id), 
	CONSTRAINT uq_updates_round_id_device_id UNIQUE (round_id, device_id)
);
INSERT INTO "updates" VALUES(1,1,1,1,'1update_id',10,'1status','1reason','1sha256',10,'{"k": 1}','{"k": 1}',10,1.5);
INSERT INTO "updates" VALUES(2,2,2,2,'2update_id',20,'2status','2reason','2sha256',20,'{"k": 2}','null',NULL,2.5);
CREATE TABLE web_sessions (
	token_sha256 VARCHAR(64) NOT NULL, 
	credential_id INTEGER NOT NULL, 
	created_at DOUBLE NOT NULL, 
	expires_at DOUBLE NOT NULL, 
	CONSTRAINT pk_web_sessions PRIMARY KEY (token_sha256), 
	CONSTRAINT fk_web_sessions_credential_id FOREIGN KEY(credential_id) REFERENCES credentials (id) ON DELETE CASCADE
);
INSERT INTO "web_sessions" VALUES('1token_sha256',1,1.5,1.5);
INSERT INTO "web_sessions" VALUES('2token_sha256',2,2.5,2.5);
CREATE INDEX ix_audit_entries_action ON audit_entries (action);
CREATE INDEX ix_audit_entries_at ON audit_entries (at);
CREATE INDEX ix_idempotent_requests_created_at ON idempotent_requests (created_at);
CREATE INDEX ix_devices_federation_id_state ON devices (federation_id, state);
CREATE INDEX ix_enrolment_tokens_federation_id ON enrolment_tokens (federation_id);
CREATE INDEX ix_events_federation_id_id ON events (federation_id, id);
CREATE INDEX ix_events_federation_id_round_number ON events (federation_id, round_number) WHERE kind IN ('round.announced', 'round.collecting', 'round.aggregating');
CREATE INDEX ix_model_versions_broadcast_sha256 ON model_versions (broadcast_sha256);
CREATE INDEX ix_adoptions_federation_id_round_number ON adoptions (federation_id, round_number);
CREATE INDEX ix_credentials_device_id ON credentials (device_id);
CREATE INDEX ix_device_tags_tag ON device_tags (tag);
CREATE INDEX ix_masked_contributions_federation_id_version ON masked_contributions (federation_id, version);
CREATE INDEX ix_metrics_federation_id_round_number_name_value ON metrics (federation_id, round_number, name, value);
CREATE INDEX ix_rollouts_phase ON rollouts (phase);
CREATE INDEX ix_rollouts_serial ON rollouts (serial);
CREATE INDEX ix_contributions_federation_id_changed_at ON contributions (federation_id, changed_at);
CREATE INDEX ix_contributions_sha256 ON contributions (sha256);
CREATE INDEX ix_participations_broadcast_sha256 ON participations (broadcast_sha256);
CREATE INDEX ix_participations_round_id_broadcast_size ON participations (round_id, broadcast_size);
CREATE INDEX ix_updates_federation_id ON updates (federation_id);
CREATE INDEX ix_updates_round_id_size ON updates (round_id, size);
CREATE INDEX ix_web_sessions_credential_id ON web_sessions (credential_id);
CREATE INDEX ix_web_sessions_expires_at ON web_sessions (expires_at);
CREATE TRIGGER audit_entries_no_update BEFORE UPDATE ON audit_entries BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
CREATE TRIGGER audit_entries_no_delete BEFORE DELETE ON audit_entries BEGIN SELECT RAISE(ABORT, 'the audit is append-only'); END;
CREATE TRIGGER key_revoked AFTER UPDATE OF revoked_at ON credentials FOR EACH ROW WHEN OLD.revoked_at IS NULL AND NEW.revoked_at IS NOT NULL BEGIN INSERT INTO ended_access (kind, subject, federation, until) VALUES ('key', OLD.prefix, '', OLD.expires_at); END;
CREATE TRIGGER key_deleted AFTER DELETE ON credentials FOR EACH ROW WHEN OLD.revoked_at IS NULL BEGIN INSERT INTO ended_access (kind, subject, federation, until) VALUES ('key', OLD.prefix, '', OLD.expires_at); END;
CREATE TRIGGER token_used AFTER UPDATE OF used_at ON enrolment_tokens FOR EACH ROW WHEN OLD.used_at IS NULL AND NEW.used_at IS NOT NULL BEGIN INSERT INTO ended_access (kind, subject, federation, until) VALUES ('token', OLD.token_sha256, '', OLD.expires_at); END;
CREATE TRIGGER token_revoked AFTER UPDATE OF revoked_at ON enrolment_tokens FOR EACH ROW WHEN OLD.revoked_at IS NULL AND NEW.revoked_at IS NOT NULL BEGIN INSERT INTO ended_access (kind, subject, federation, until) VALUES ('token', OLD.token_sha256, '', OLD.expires_at); END;
CREATE TRIGGER token_deleted AFTER DELETE ON enrolment_tokens FOR EACH ROW WHEN OLD.used_at IS NULL AND OLD.revoked_at IS NULL BEGIN INSERT INTO ended_access (kind, subject, federation, until) VALUES ('token', OLD.token_sha256, '', OLD.expires_at); END;
CREATE TRIGGER device_revoked AFTER UPDATE OF enrolment ON devices FOR EACH ROW WHEN OLD.enrolment <> 'revoked' AND NEW.enrolment = 'revoked' BEGIN INSERT INTO ended_access (kind, subject, federation, until) VALUES ('device', OLD.name, (SELECT name FROM federations WHERE id = OLD.federation_id), NULL); END;
CREATE TRIGGER device_key_replaced AFTER UPDATE OF public_key ON devices FOR EACH ROW WHEN OLD.public_key IS NOT NULL AND (NEW.public_key IS NULL OR NEW.public_key <> OLD.public_key) BEGIN INSERT INTO ended_access (kind, subject, federation, until) VALUES ('device', OLD.name, (SELECT name FROM federations WHERE id = OLD.federation_id), NULL); END;
CREATE TRIGGER device_deleted AFTER DELETE ON devices FOR EACH ROW WHEN OLD.id IS NOT NULL BEGIN INSERT INTO ended_access (kind, subject, federation, until) VALUES ('device-deleted', OLD.name, (SELECT name FROM federations WHERE id = OLD.federation_id), NULL); END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('audit_entries',2);
INSERT INTO "sqlite_sequence" VALUES('events',2);
COMMIT;
