-- {"release": "0.1.0", "token": "eld_c220a52cf0c8b216aa69e198a89d94bd5d73f85d4cccedcf3787d2430349c06a"}
BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE attempts (
	job VARCHAR(64) NOT NULL, 
	number INTEGER NOT NULL, 
	submission_id VARCHAR(100) NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	created_at FLOAT NOT NULL, 
	submitted_at FLOAT, 
	claimed_at FLOAT, 
	ended_at FLOAT, 
	code VARCHAR(100), 
	code_digest VARCHAR(64) NOT NULL, 
	nonce_digest VARCHAR(64), 
	token_secret VARCHAR(100) NOT NULL, 
	token_digest VARCHAR(64), 
	acked_seq BIGINT NOT NULL, 
	stop_asked_at FLOAT, 
	outcome VARCHAR(20), 
	outcome_at FLOAT, 
	outcome_step INTEGER, 
	failed_by VARCHAR(20), 
	message TEXT, 
	PRIMARY KEY (job, number), 
	FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE, 
	UNIQUE (submission_id), 
	UNIQUE (token_digest)
);
INSERT INTO "attempts" VALUES('j-2x47dt01dj',1,'ash3mj-j-2x47dt01dj-1','ended',1.80000000100699949264e+09,1.8000000010089993477e+09,1.80000000101199913032e+09,1.80000000201699876783e+09,NULL,'654a2af1020fbd8e8b865cb20e0b80d38de6f35ec935e72c220eea9e4c73126f','2d30bcd08e44bec61c0b1ce99c3588b95db03c552136844ac08fbf2f21e7107d','WQXmLZ2Lyi2LiuPE_tzOKJlBfH0m5OnXVjgVpNX_9ck','f092d52622bbacaaf635433d2f1e367edbe4f8b71abd9ad32cc63b4bb1199561',2,NULL,'succeeded',1.80000000101399898529e+09,100,NULL,NULL);
INSERT INTO "attempts" VALUES('j-2x47dvz42n',1,'ash3mj-j-2x47dvz42n-1','claimed',1.80000000302499818796e+09,1.80000000302699804301e+09,1.80000000302999782564e+09,NULL,NULL,'5087af1ea5f14eed404aef3311a0f574f4549b28661b5f3c85e0924e940fd34b','2d30bcd08e44bec61c0b1ce99c3588b95db03c552136844ac08fbf2f21e7107d','_w7pWSujYOpbdZQiZ9HMfJgnNsRXTcnMoe1jQrJrmZ0','3a1b68e6a694d40baaa2243d0857ab0cb2d41c01c9d87fb0c0c09de990e30dd2',10,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE checkpoints (
	job VARCHAR(64) NOT NULL, 
	step INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	epoch FLOAT, 
	created_at FLOAT NOT NULL, 
	bytes BIGINT NOT NULL, 
	state VARCHAR(20) NOT NULL, 
	params_digest VARCHAR(64), 
	state_digest VARCHAR(64), 
	metrics JSON NOT NULL, 
	files JSON NOT NULL, 
	pinned BOOLEAN NOT NULL, 
	PRIMARY KEY (job, step), 
	FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "checkpoints" VALUES('j-2x47dvz42n',5,1,NULL,1.80000000303999710075e+09,10,'saved',NULL,NULL,'{}','[]',0);
CREATE TABLE events (
	job VARCHAR(64) NOT NULL, 
	position BIGINT NOT NULL, 
	at FLOAT NOT NULL, 
	type VARCHAR(60) NOT NULL, 
	message TEXT NOT NULL, 
	data JSON NOT NULL, 
	PRIMARY KEY (job, position), 
	FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "events" VALUES('j-2x47dt01dj',1,1.80000000000199985496e+09,'job.queued','The job was submitted','{"status": "queued", "reason": "submitted", "actor": "admin"}');
INSERT INTO "events" VALUES('j-2x47dt01dj',2,1.80000000100499963759e+09,'job.starting','The job is starting','{"status": "starting", "reason": "workers_granted", "actor": "service"}');
INSERT INTO "events" VALUES('j-2x47dt01dj',3,1.80000000101199913032e+09,'attempt.started','Attempt 1 started','{"attempt": 1, "submission_id": "ash3mj-j-2x47dt01dj-1"}');
INSERT INTO "events" VALUES('j-2x47dt01dj',4,1.80000000101299905772e+09,'job.running','The job is running','{"status": "running", "reason": "training", "actor": "service"}');
INSERT INTO "events" VALUES('j-2x47dt01dj',5,1.80000000101399898529e+09,'attempt.ended','Attempt 1 ended: succeeded','{"attempt": 1, "outcome": "succeeded", "step": 100, "failed_by": null}');
INSERT INTO "events" VALUES('j-2x47dt01dj',6,1.80000000101399898529e+09,'job.succeeded','The job is succeeded','{"status": "succeeded", "reason": "completed", "actor": "service"}');
INSERT INTO "events" VALUES('j-2x47dvz42n',1,1.80000000202099847794e+09,'job.queued','The job was submitted','{"status": "queued", "reason": "submitted", "actor": "admin"}');
INSERT INTO "events" VALUES('j-2x47dvz42n',2,1.8000000030229983329e+09,'job.starting','The job is starting','{"status": "starting", "reason": "workers_granted", "actor": "service"}');
INSERT INTO "events" VALUES('j-2x47dvz42n',3,1.80000000302999782564e+09,'attempt.started','Attempt 1 started','{"attempt": 1, "submission_id": "ash3mj-j-2x47dvz42n-1"}');
INSERT INTO "events" VALUES('j-2x47dvz42n',4,1.80000000303099775321e+09,'job.running','The job is running','{"status": "running", "reason": "training", "actor": "service"}');
INSERT INTO "events" VALUES('j-2x47dwz07x',1,1.80000000304099702832e+09,'job.queued','The job was submitted','{"status": "queued", "reason": "submitted", "actor": "admin"}');
INSERT INTO "events" VALUES('j-2x47dwz07x',2,1.80000000404399681085e+09,'job.waiting','It needs at least 4 workers with 1 CPU each; all nodes together, empty, would hold 2','{"reason": "does_not_fit", "short_of": 2}');
CREATE TABLE facts (
	name VARCHAR(63) NOT NULL, 
	at FLOAT NOT NULL, 
	value JSON NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "facts" VALUES('installation',1.80000000100399971001e+09,'"ash3mj"');
INSERT INTO "facts" VALUES('reconciler',1.80000000101099920275e+09,'true');
INSERT INTO "facts" VALUES('cluster',1.80000000101099920275e+09,'{"nodes": [{"id": "n1", "alive": true, "resources": {"CPU": 2.0}, "used": {}}], "reachable": true, "detail": null}');
CREATE TABLE generations (
	job VARCHAR(64) NOT NULL, 
	attempt INTEGER NOT NULL, 
	generation INTEGER NOT NULL, 
	formed_at FLOAT NOT NULL, 
	step INTEGER NOT NULL, 
	workers JSON NOT NULL, 
	cause TEXT NOT NULL, 
	pause_ms FLOAT, 
	PRIMARY KEY (job, attempt, generation), 
	FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "generations" VALUES('j-2x47dvz42n',1,1,1.80000000303299760827e+09,0,'["w0"]','start',NULL);
CREATE TABLE idempotency (
	token VARCHAR(32) NOT NULL, 
	route VARCHAR(40) NOT NULL, 
	"key" VARCHAR(255) NOT NULL, 
	body_digest VARCHAR(64) NOT NULL, 
	job VARCHAR(64) NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (token, route, "key"), 
	FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "idempotency" VALUES('t-admin','POST /jobs','used-once','d72404918ff5f903eed96468b2dc8247c48edbb27d1718888c67887ce61038c0','j-2x47dt01dj',1.80000000000199985496e+09);
CREATE TABLE job_labels (
	job VARCHAR(64) NOT NULL, 
	"key" VARCHAR(63) NOT NULL, 
	value VARCHAR(255) NOT NULL, 
	PRIMARY KEY (job, "key"), 
	FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "job_labels" VALUES('j-2x47dvz42n','team','vision');
CREATE TABLE jobs (
	id VARCHAR(64) NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	project VARCHAR(63) NOT NULL, 
	priority INTEGER NOT NULL, 
	spec JSON NOT NULL, 
	created_by VARCHAR(200) NOT NULL, 
	created_at FLOAT NOT NULL, 
	started_at FLOAT, 
	finished_at FLOAT, 
	status VARCHAR(20) NOT NULL, 
	reason VARCHAR(40) NOT NULL, 
	message TEXT, 
	failed_by VARCHAR(20), 
	since FLOAT NOT NULL, 
	queued_at FLOAT NOT NULL, 
	short_of INTEGER NOT NULL, 
	desired VARCHAR(20) NOT NULL, 
	desired_version INTEGER NOT NULL, 
	desired_at FLOAT NOT NULL, 
	workers_min INTEGER NOT NULL, 
	workers_max INTEGER NOT NULL, 
	workers_target INTEGER NOT NULL, 
	checkpoint_no INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	attempts_made INTEGER NOT NULL, 
	next_attempt_at FLOAT NOT NULL, 
	retries_used INTEGER NOT NULL, 
	retries_mark INTEGER NOT NULL, 
	position BIGINT NOT NULL, 
	step INTEGER NOT NULL, 
	total_steps INTEGER, 
	epoch FLOAT, 
	eta_s FLOAT, 
	samples_per_s FLOAT, 
	workers_active INTEGER NOT NULL, 
	workers_replaced INTEGER NOT NULL, 
	steps_skipped INTEGER NOT NULL, 
	warnings JSON NOT NULL, 
	era_attempt INTEGER NOT NULL, 
	era_epoch_no INTEGER NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "jobs" VALUES('j-2x47dt01dj','ended','default',0,'{"kind": "train", "name": "ended", "project": "default", "task": "elastrain.trainers.tasks.digits:Digits", "task_args": {}, "code": null, "strategy": {"name": "all_reduce"}, "aggregate": "gradients", "optimizer": {"lr": 0.001, "maximize": false, "weight_decay": 0.0, "weight_decay_1d": true, "name": "adam", "betas": [0.9, 0.999], "eps": 1e-08, "amsgrad": false}, "schedule": {"warmup_steps": 0, "decay": "constant", "min_lr": 0.0}, "clip_norm": null, "compression": "none", "precision": "fp32", "batch": {"size": 64, "microbatch": 16}, "epochs": null, "steps": 100, "seed": 0, "workers": {"min": 1, "max": 2, "per_group": 1, "spares": 0}, "resources": {"cpu": 1.0, "gpu": 0, "memory": null, "accelerator": null, "labels": {}, "custom": {}}, "checkpoint": {"every_steps": 100, "every_s": null, "keep": 3, "best": null}, "evaluate": {"every_steps": null, "at_end": true}, "non_finite": {"policy": "skip", "max": 10}, "shuffle": true, "requirements": [], "image": null, "retries": 3, "priority": 0, "env": {}, "secrets": [], "resume_from": null, "labels": {}, "timeout_s": null}','admin',1.80000000000199985496e+09,1.80000000101299905772e+09,1.80000000101399898529e+09,'succeeded','completed',NULL,NULL,1.80000000101399898529e+09,1.80000000000199985496e+09,0,'run',1,1.80000000000199985496e+09,1,2,0,0,1,1,0.0,0,0,6,100,100,NULL,NULL,NULL,0,0,0,'[]',0,0);
INSERT INTO "jobs" VALUES('j-2x47dvz42n','running','default',0,'{"kind": "train", "name": "running", "project": "default", "task": "elastrain.trainers.tasks.digits:Digits", "task_args": {}, "code": null, "strategy": {"name": "all_reduce"}, "aggregate": "gradients", "optimizer": {"lr": 0.001, "maximize": false, "weight_decay": 0.0, "weight_decay_1d": true, "name": "adam", "betas": [0.9, 0.999], "eps": 1e-08, "amsgrad": false}, "schedule": {"warmup_steps": 0, "decay": "constant", "min_lr": 0.0}, "clip_norm": null, "compression": "none", "precision": "fp32", "batch": {"size": 64, "microbatch": 16}, "epochs": null, "steps": 100, "seed": 0, "workers": {"min": 1, "max": 1, "per_group": 1, "spares": 0}, "resources": {"cpu": 1.0, "gpu": 0, "memory": null, "accelerator": null, "labels": {}, "custom": {}}, "checkpoint": {"every_steps": 100, "every_s": null, "keep": 3, "best": null}, "evaluate": {"every_steps": null, "at_end": true}, "non_finite": {"policy": "skip", "max": 10}, "shuffle": true, "requirements": [], "image": null, "retries": 3, "priority": 0, "env": {}, "secrets": [], "resume_from": null, "labels": {"team": "vision"}, "timeout_s": null}','admin',1.80000000202099847794e+09,1.80000000303099775321e+09,NULL,'running','training',NULL,NULL,1.80000000303099775321e+09,1.80000000202099847794e+09,0,'run',1,1.80000000202099847794e+09,1,1,1,0,1,1,0.0,0,0,10,0,100,NULL,NULL,NULL,0,0,0,'[]',1,0);
INSERT INTO "jobs" VALUES('j-2x47dwz07x','queued','default',0,'{"kind": "train", "name": "queued", "project": "default", "task": "elastrain.trainers.tasks.digits:Digits", "task_args": {}, "code": null, "strategy": {"name": "all_reduce"}, "aggregate": "gradients", "optimizer": {"lr": 0.001, "maximize": false, "weight_decay": 0.0, "weight_decay_1d": true, "name": "adam", "betas": [0.9, 0.999], "eps": 1e-08, "amsgrad": false}, "schedule": {"warmup_steps": 0, "decay": "constant", "min_lr": 0.0}, "clip_norm": null, "compression": "none", "precision": "fp32", "batch": {"size": 64, "microbatch": 16}, "epochs": null, "steps": 100, "seed": 0, "workers": {"min": 4, "max": 4, "per_group": 1, "spares": 0}, "resources": {"cpu": 1.0, "gpu": 0, "memory": null, "accelerator": null, "labels": {}, "custom": {}}, "checkpoint": {"every_steps": 100, "every_s": null, "keep": 3, "best": null}, "evaluate": {"every_steps": null, "at_end": true}, "non_finite": {"policy": "skip", "max": 10}, "shuffle": true, "requirements": [], "image": null, "retries": 3, "priority": 0, "env": {}, "secrets": [], "resume_from": null, "labels": {}, "timeout_s": null}','admin',1.80000000304099702832e+09,NULL,NULL,'queued','does_not_fit','It needs at least 4 workers with 1 CPU each; all nodes together, empty, would hold 2',NULL,1.80000000304099702832e+09,1.80000000304099702832e+09,2,'run',1,1.80000000304099702832e+09,4,4,0,0,0,0,0.0,0,0,2,0,NULL,NULL,NULL,NULL,0,0,0,'[]',0,0);
CREATE TABLE log_segments (
	job VARCHAR(64) NOT NULL, 
	position BIGINT NOT NULL, 
	attempt INTEGER NOT NULL, 
	worker VARCHAR(63) NOT NULL, 
	"offset" BIGINT NOT NULL, 
	bytes BIGINT NOT NULL, 
	at FLOAT NOT NULL, 
	PRIMARY KEY (job, position), 
	FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "log_segments" VALUES('j-2x47dvz42n',5,1,'w0',0,6,1.80000000303399753567e+09);
CREATE TABLE metrics (
	job VARCHAR(64) NOT NULL, 
	position BIGINT NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	step INTEGER NOT NULL, 
	value FLOAT, 
	word VARCHAR(10), 
	at FLOAT NOT NULL, 
	attempt INTEGER NOT NULL, 
	epoch_no INTEGER NOT NULL, 
	superseded BOOLEAN NOT NULL, 
	PRIMARY KEY (job, position, name), 
	FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "metrics" VALUES('j-2x47dvz42n',6,'loss',1,1.0,NULL,1.80000000303499746324e+09,1,0,0);
INSERT INTO "metrics" VALUES('j-2x47dvz42n',6,'odd',1,NULL,'NaN',1.80000000303499746324e+09,1,0,0);
INSERT INTO "metrics" VALUES('j-2x47dvz42n',7,'loss',2,0.5,NULL,1.80000000303599739072e+09,1,0,0);
INSERT INTO "metrics" VALUES('j-2x47dvz42n',7,'odd',2,NULL,'NaN',1.80000000303599739072e+09,1,0,0);
INSERT INTO "metrics" VALUES('j-2x47dvz42n',8,'loss',3,3.33333333333333314829e-01,NULL,1.80000000303699731829e+09,1,0,0);
INSERT INTO "metrics" VALUES('j-2x47dvz42n',8,'odd',3,NULL,'NaN',1.80000000303699731829e+09,1,0,0);
INSERT INTO "metrics" VALUES('j-2x47dvz42n',9,'loss',4,0.25,NULL,1.80000000303799724578e+09,1,0,0);
INSERT INTO "metrics" VALUES('j-2x47dvz42n',9,'odd',4,NULL,'NaN',1.80000000303799724578e+09,1,0,0);
INSERT INTO "metrics" VALUES('j-2x47dvz42n',10,'loss',5,0.2,NULL,1.80000000303899717335e+09,1,0,0);
INSERT INTO "metrics" VALUES('j-2x47dvz42n',10,'odd',5,NULL,'NaN',1.80000000303899717335e+09,1,0,0);
CREATE TABLE metrics_latest (
	job VARCHAR(64) NOT NULL, 
	name VARCHAR(200) NOT NULL, 
	step INTEGER NOT NULL, 
	value FLOAT, 
	word VARCHAR(10), 
	attempt INTEGER NOT NULL, 
	epoch_no INTEGER NOT NULL, 
	PRIMARY KEY (job, name), 
	FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "metrics_latest" VALUES('j-2x47dvz42n','loss',5,0.2,NULL,1,0);
INSERT INTO "metrics_latest" VALUES('j-2x47dvz42n','odd',5,NULL,'NaN',1,0);
CREATE TABLE metrics_superseded (
	job VARCHAR(64) NOT NULL, 
	position BIGINT NOT NULL, 
	first_step INTEGER NOT NULL, 
	last_step INTEGER NOT NULL, 
	attempt INTEGER NOT NULL, 
	PRIMARY KEY (job, position), 
	FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE
);
CREATE TABLE packages (
	sha256 VARCHAR(64) NOT NULL, 
	project VARCHAR(63) NOT NULL, 
	bytes BIGINT NOT NULL, 
	created_at FLOAT NOT NULL, 
	PRIMARY KEY (sha256, project)
);
INSERT INTO "packages" VALUES('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa','default',10,0.0);
CREATE TABLE tokens (
	id VARCHAR(32) NOT NULL, 
	digest VARCHAR(64) NOT NULL, 
	name VARCHAR(63) NOT NULL, 
	role VARCHAR(10) NOT NULL, 
	project VARCHAR(63), 
	created_at FLOAT NOT NULL, 
	expires_at FLOAT, 
	last_used_at FLOAT, 
	PRIMARY KEY (id), 
	UNIQUE (digest)
);
INSERT INTO "tokens" VALUES('t-8d307128da1f','dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd','ci','member','default',0.0,NULL,NULL);
CREATE TABLE transitions (
	job VARCHAR(64) NOT NULL, 
	number INTEGER NOT NULL, 
	status VARCHAR(20) NOT NULL, 
	reason VARCHAR(40) NOT NULL, 
	at FLOAT NOT NULL, 
	actor VARCHAR(200) NOT NULL, 
	PRIMARY KEY (job, number), 
	FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "transitions" VALUES('j-2x47dt01dj',1,'queued','submitted',1.80000000000199985496e+09,'admin');
INSERT INTO "transitions" VALUES('j-2x47dt01dj',2,'starting','workers_granted',1.80000000100499963759e+09,'service');
INSERT INTO "transitions" VALUES('j-2x47dt01dj',3,'running','training',1.80000000101299905772e+09,'service');
INSERT INTO "transitions" VALUES('j-2x47dt01dj',4,'succeeded','completed',1.80000000101399898529e+09,'service');
INSERT INTO "transitions" VALUES('j-2x47dvz42n',1,'queued','submitted',1.80000000202099847794e+09,'admin');
INSERT INTO "transitions" VALUES('j-2x47dvz42n',2,'starting','workers_granted',1.8000000030229983329e+09,'service');
INSERT INTO "transitions" VALUES('j-2x47dvz42n',3,'running','training',1.80000000303099775321e+09,'service');
INSERT INTO "transitions" VALUES('j-2x47dwz07x',1,'queued','submitted',1.80000000304099702832e+09,'admin');
CREATE TABLE workers (
	job VARCHAR(64) NOT NULL, 
	attempt INTEGER NOT NULL, 
	id VARCHAR(63) NOT NULL, 
	"group" VARCHAR(63), 
	node VARCHAR(255), 
	pid INTEGER, 
	rank INTEGER, 
	state VARCHAR(20) NOT NULL, 
	joined_step INTEGER, 
	share FLOAT, 
	PRIMARY KEY (job, attempt, id), 
	FOREIGN KEY(job) REFERENCES jobs (id) ON DELETE CASCADE
);
INSERT INTO "workers" VALUES('j-2x47dvz42n',1,'w0','g0','n1',7,NULL,'active',NULL,NULL);
CREATE INDEX jobs_by_age ON jobs (created_at, id);
CREATE INDEX jobs_by_status ON jobs (status);
CREATE INDEX attempts_by_state ON attempts (state);
CREATE INDEX job_labels_by_value ON job_labels ("key", value);
CREATE UNIQUE INDEX log_segments_by_offset ON log_segments (job, attempt, worker, "offset");
CREATE INDEX metrics_by_step ON metrics (job, name, superseded, step);
COMMIT;
