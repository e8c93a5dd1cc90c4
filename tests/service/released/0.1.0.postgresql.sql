-- {"release": "0.1.0", "token": "eld_bae0f3f74ae17b0fda9beb77d471ba8d52f0efa7eda9ed938681b941a8d586c3"}
CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.attempts (
    job character varying(64) NOT NULL,
    number integer NOT NULL,
    submission_id character varying(100) NOT NULL,
    state character varying(20) NOT NULL,
    created_at double precision NOT NULL,
    submitted_at double precision,
    claimed_at double precision,
    ended_at double precision,
    code character varying(100),
    code_digest character varying(64) NOT NULL,
    nonce_digest character varying(64),
    token_secret character varying(100) NOT NULL,
    token_digest character varying(64),
    acked_seq bigint NOT NULL,
    stop_asked_at double precision,
    outcome character varying(20),
    outcome_at double precision,
    outcome_step integer,
    failed_by character varying(20),
    message text
);
CREATE TABLE public.checkpoints (
    job character varying(64) NOT NULL,
    step integer NOT NULL,
    attempt integer NOT NULL,
    epoch double precision,
    created_at double precision NOT NULL,
    bytes bigint NOT NULL,
    state character varying(20) NOT NULL,
    params_digest character varying(64),
    state_digest character varying(64),
    metrics json NOT NULL,
    files json NOT NULL,
    pinned boolean NOT NULL
);
CREATE TABLE public.events (
    job character varying(64) NOT NULL,
    "position" bigint NOT NULL,
    at double precision NOT NULL,
    type character varying(60) NOT NULL,
    message text NOT NULL,
    data json NOT NULL
);
CREATE TABLE public.facts (
    name character varying(63) NOT NULL,
    at double precision NOT NULL,
    value json NOT NULL
);
CREATE TABLE public.generations (
    job character varying(64) NOT NULL,
    attempt integer NOT NULL,
    generation integer NOT NULL,
    formed_at double precision NOT NULL,
    step integer NOT NULL,
    workers json NOT NULL,
    cause text NOT NULL,
    pause_ms double precision
);
CREATE TABLE public.idempotency (
    token character varying(32) NOT NULL,
    route character varying(40) NOT NULL,
    key character varying(255) NOT NULL,
    body_digest character varying(64) NOT NULL,
    job character varying(64) NOT NULL,
    at double precision NOT NULL
);
CREATE TABLE public.job_labels (
    job character varying(64) NOT NULL,
    key character varying(63) NOT NULL,
    value character varying(255) NOT NULL
);
CREATE TABLE public.jobs (
    id character varying(64) NOT NULL,
    name character varying(63) NOT NULL,
    project character varying(63) NOT NULL,
    priority integer NOT NULL,
    spec json NOT NULL,
    created_by character varying(200) NOT NULL,
    created_at double precision NOT NULL,
    started_at double precision,
    finished_at double precision,
    status character varying(20) NOT NULL,
    reason character varying(40) NOT NULL,
    message text,
    failed_by character varying(20),
    since double precision NOT NULL,
    queued_at double precision NOT NULL,
    short_of integer NOT NULL,
    desired character varying(20) NOT NULL,
    desired_version integer NOT NULL,
    desired_at double precision NOT NULL,
    workers_min integer NOT NULL,
    workers_max integer NOT NULL,
    workers_target integer NOT NULL,
    checkpoint_no integer NOT NULL,
    attempt integer NOT NULL,
    attempts_made integer NOT NULL,
    next_attempt_at double precision NOT NULL,
    retries_used integer NOT NULL,
    retries_mark integer NOT NULL,
    "position" bigint NOT NULL,
    step integer NOT NULL,
    total_steps integer,
    epoch double precision,
    eta_s double precision,
    samples_per_s double precision,
    workers_active integer NOT NULL,
    workers_replaced integer NOT NULL,
    steps_skipped integer NOT NULL,
    warnings json NOT NULL,
    era_attempt integer NOT NULL,
    era_epoch_no integer NOT NULL
);
CREATE TABLE public.log_segments (
    job character varying(64) NOT NULL,
    "position" bigint NOT NULL,
    attempt integer NOT NULL,
    worker character varying(63) NOT NULL,
    "offset" bigint NOT NULL,
    bytes bigint NOT NULL,
    at double precision NOT NULL
);
CREATE TABLE public.metrics (
    job character varying(64) NOT NULL,
    "position" bigint NOT NULL,
    name character varying(200) NOT NULL,
    step integer NOT NULL,
    value double precision,
    word character varying(10),
    at double precision NOT NULL,
    attempt integer NOT NULL,
    epoch_no integer NOT NULL,
    superseded boolean NOT NULL
);
CREATE TABLE public.metrics_latest (
    job character varying(64) NOT NULL,
    name character varying(200) NOT NULL,
    step integer NOT NULL,
    value double precision,
    word character varying(10),
    attempt integer NOT NULL,
    epoch_no integer NOT NULL
);
CREATE TABLE public.metrics_superseded (
    job character varying(64) NOT NULL,
    "position" bigint NOT NULL,
    first_step integer NOT NULL,
    last_step integer NOT NULL,
    attempt integer NOT NULL
);
CREATE TABLE public.packages (
    sha256 character varying(64) NOT NULL,
    project character varying(63) NOT NULL,
    bytes bigint NOT NULL,
    created_at double precision NOT NULL
);
CREATE TABLE public.tokens (
    id character varying(32) NOT NULL,
    digest character varying(64) NOT NULL,
    name character varying(63) NOT NULL,
    role character varying(10) NOT NULL,
    project character varying(63),
    created_at double precision NOT NULL,
    expires_at double precision,
    last_used_at double precision
);
CREATE TABLE public.transitions (
    job character varying(64) NOT NULL,
    number integer NOT NULL,
    status character varying(20) NOT NULL,
    reason character varying(40) NOT NULL,
    at double precision NOT NULL,
    actor character varying(200) NOT NULL
);
CREATE TABLE public.workers (
    job character varying(64) NOT NULL,
    attempt integer NOT NULL,
    id character varying(63) NOT NULL,
    "group" character varying(63),
    node character varying(255),
    pid integer,
    rank integer,
    state character varying(20) NOT NULL,
    joined_step integer,
    share double precision
);
INSERT INTO public.alembic_version VALUES ('0001');
INSERT INTO public.attempts VALUES ('j-2x47dt017y', 1, '13xmd1-j-2x47dt017y-1', 'ended', 1800000001.0069995, 1800000001.0089993, 1800000001.0119991, 1800000002.0169988, NULL, 'd58a10904b0dc507ae59353ca1839aeed715f9426d2e1538a082f081c726700b', '2d30bcd08e44bec61c0b1ce99c3588b95db03c552136844ac08fbf2f21e7107d', 'uOnbeGsflMegwcXfDjZQbze_OLv-628elQd8ZtIPuBg', 'c8f149c79e781f3a957f92df879dd6e85d3bca2caa50ccdd9aa1c16eba8a72c9', 2, NULL, 'succeeded', 1800000001.013999, 100, NULL, NULL);
INSERT INTO public.attempts VALUES ('j-2x47dvz4b5', 1, '13xmd1-j-2x47dvz4b5-1', 'claimed', 1800000003.0249982, 1800000003.026998, 1800000003.0299978, NULL, NULL, '2471fd1de1de57b6bf4ec28c49ea60b4307b250bcf94bdc24f91b97e53f8516f', '2d30bcd08e44bec61c0b1ce99c3588b95db03c552136844ac08fbf2f21e7107d', 'WRrP_APZhClVYZSoevU-t5ZzMNjUge-98AZQEtwkYUQ', '4de0151735e0c513b18387eb70b04a8cb78e89143e82c1c24f713936173bbb9d', 10, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO public.checkpoints VALUES ('j-2x47dvz4b5', 5, 1, NULL, 1800000003.039997, 10, 'saved', NULL, NULL, '{}', '[]', false);
INSERT INTO public.events VALUES ('j-2x47dt017y', 1, 1800000000.0019999, 'job.queued', 'The job was submitted', '{"status": "queued", "reason": "submitted", "actor": "admin"}');
INSERT INTO public.events VALUES ('j-2x47dt017y', 2, 1800000001.0049996, 'job.starting', 'The job is starting', '{"status": "starting", "reason": "workers_granted", "actor": "service"}');
INSERT INTO public.events VALUES ('j-2x47dt017y', 3, 1800000001.0119991, 'attempt.started', 'Attempt 1 started', '{"attempt": 1, "submission_id": "13xmd1-j-2x47dt017y-1"}');
INSERT INTO public.events VALUES ('j-2x47dt017y', 4, 1800000001.012999, 'job.running', 'The job is running', '{"status": "running", "reason": "training", "actor": "service"}');
INSERT INTO public.events VALUES ('j-2x47dt017y', 5, 1800000001.013999, 'attempt.ended', 'Attempt 1 ended: succeeded', '{"attempt": 1, "outcome": "succeeded", "step": 100, "failed_by": null}');
INSERT INTO public.events VALUES ('j-2x47dt017y', 6, 1800000001.013999, 'job.succeeded', 'The job is succeeded', '{"status": "succeeded", "reason": "completed", "actor": "service"}');
INSERT INTO public.events VALUES ('j-2x47dvz4b5', 1, 1800000002.0209985, 'job.queued', 'The job was submitted', '{"status": "queued", "reason": "submitted", "actor": "admin"}');
INSERT INTO public.events VALUES ('j-2x47dvz4b5', 2, 1800000003.0229983, 'job.starting', 'The job is starting', '{"status": "starting", "reason": "workers_granted", "actor": "service"}');
INSERT INTO public.events VALUES ('j-2x47dvz4b5', 3, 1800000003.0299978, 'attempt.started', 'Attempt 1 started', '{"attempt": 1, "submission_id": "13xmd1-j-2x47dvz4b5-1"}');
INSERT INTO public.events VALUES ('j-2x47dvz4b5', 4, 1800000003.0309978, 'job.running', 'The job is running', '{"status": "running", "reason": "training", "actor": "service"}');
INSERT INTO public.events VALUES ('j-2x47dwz0w9', 1, 1800000003.040997, 'job.queued', 'The job was submitted', '{"status": "queued", "reason": "submitted", "actor": "admin"}');
INSERT INTO public.events VALUES ('j-2x47dwz0w9', 2, 1800000004.0439968, 'job.waiting', 'It needs at least 4 workers with 1 CPU each; all nodes together, empty, would hold 2', '{"reason": "does_not_fit", "short_of": 2}');
INSERT INTO public.facts VALUES ('installation', 1800000001.0039997, '"13xmd1"');
INSERT INTO public.facts VALUES ('reconciler', 1800000001.0109992, 'true');
INSERT INTO public.facts VALUES ('cluster', 1800000001.0109992, '{"nodes": [{"id": "n1", "alive": true, "resources": {"CPU": 2.0}, "used": {}}], "reachable": true, "detail": null}');
INSERT INTO public.generations VALUES ('j-2x47dvz4b5', 1, 1, 1800000003.0329976, 0, '["w0"]', 'start', NULL);
INSERT INTO public.idempotency VALUES ('t-admin', 'POST /jobs', 'used-once', 'd72404918ff5f903eed96468b2dc8247c48edbb27d1718888c67887ce61038c0', 'j-2x47dt017y', 1800000000.0019999);
INSERT INTO public.job_labels VALUES ('j-2x47dvz4b5', 'team', 'vision');
INSERT INTO public.jobs VALUES ('j-2x47dt017y', 'ended', 'default', 0, '{"kind": "train", "name": "ended", "project": "default", "task": "elastrain.trainers.tasks.digits:Digits", "task_args": {}, "code": null, "strategy": {"name": "all_reduce"}, "aggregate": "gradients", "optimizer": {"lr": 0.001, "maximize": false, "weight_decay": 0.0, "weight_decay_1d": true, "name": "adam", "betas": [0.9, 0.999], "eps": 1e-08, "amsgrad": false}, "schedule": {"warmup_steps": 0, "decay": "constant", "min_lr": 0.0}, "clip_norm": null, "compression": "none", "precision": "fp32", "batch": {"size": 64, "microbatch": 16}, "epochs": null, "steps": 100, "seed": 0, "workers": {"min": 1, "max": 2, "per_group": 1, "spares": 0}, "resources": {"cpu": 1.0, "gpu": 0, "memory": null, "accelerator": null, "labels": {}, "custom": {}}, "checkpoint": {"every_steps": 100, "every_s": null, "keep": 3, "best": null}, "evaluate": {"every_steps": null, "at_end": true}, "non_finite": {"policy": "skip", "max": 10}, "shuffle": true, "requirements": [], "image": null, "retries": 3, "priority": 0, "env": {}, "secrets": [], "resume_from": null, "labels": {}, "timeout_s": null}', 'admin', 1800000000.0019999, 1800000001.012999, 1800000001.013999, 'succeeded', 'completed', NULL, NULL, 1800000001.013999, 1800000000.0019999, 0, 'run', 1, 1800000000.0019999, 1, 2, 0, 0, 1, 1, 0, 0, 0, 6, 100, 100, NULL, NULL, NULL, 0, 0, 0, '[]', 0, 0);
INSERT INTO public.jobs VALUES ('j-2x47dwz0w9', 'queued', 'default', 0, '{"kind": "train", "name": "queued", "project": "default", "task": "elastrain.trainers.tasks.digits:Digits", "task_args": {}, "code": null, "strategy": {"name": "all_reduce"}, "aggregate": "gradients", "optimizer": {"lr": 0.001, "maximize": false, "weight_decay": 0.0, "weight_decay_1d": true, "name": "adam", "betas": [0.9, 0.999], "eps": 1e-08, "amsgrad": false}, "schedule": {"warmup_steps": 0, "decay": "constant", "min_lr": 0.0}, "clip_norm": null, "compression": "none", "precision": "fp32", "batch": {"size": 64, "microbatch": 16}, "epochs": null, "steps": 100, "seed": 0, "workers": {"min": 4, "max": 4, "per_group": 1, "spares": 0}, "resources": {"cpu": 1.0, "gpu": 0, "memory": null, "accelerator": null, "labels": {}, "custom": {}}, "checkpoint": {"every_steps": 100, "every_s": null, "keep": 3, "best": null}, "evaluate": {"every_steps": null, "at_end": true}, "non_finite": {"policy": "skip", "max": 10}, "shuffle": true, "requirements": [], "image": null, "retries": 3, "priority": 0, "env": {}, "secrets": [], "resume_from": null, "labels": {}, "timeout_s": null}', 'admin', 1800000003.040997, NULL, NULL, 'queued', 'does_not_fit', 'It needs at least 4 workers with 1 CPU each; all nodes together, empty, would hold 2', NULL, 1800000003.040997, 1800000003.040997, 2, 'run', 1, 1800000003.040997, 4, 4, 0, 0, 0, 0, 0, 0, 0, 2, 0, NULL, NULL, NULL, NULL, 0, 0, 0, '[]', 0, 0);
INSERT INTO public.jobs VALUES ('j-2x47dvz4b5', 'running', 'default', 0, '{"kind": "train", "name": "running", "project": "default", "task": "elastrain.trainers.tasks.digits:Digits", "task_args": {}, "code": null, "strategy": {"name": "all_reduce"}, "aggregate": "gradients", "optimizer": {"lr": 0.001, "maximize": false, "weight_decay": 0.0, "weight_decay_1d": true, "name": "adam", "betas": [0.9, 0.999], "eps": 1e-08, "amsgrad": false}, "schedule": {"warmup_steps": 0, "decay": "constant", "min_lr": 0.0}, "clip_norm": null, "compression": "none", "precision": "fp32", "batch": {"size": 64, "microbatch": 16}, "epochs": null, "steps": 100, "seed": 0, "workers": {"min": 1, "max": 1, "per_group": 1, "spares": 0}, "resources": {"cpu": 1.0, "gpu": 0, "memory": null, "accelerator": null, "labels": {}, "custom": {}}, "checkpoint": {"every_steps": 100, "every_s": null, "keep": 3, "best": null}, "evaluate": {"every_steps": null, "at_end": true}, "non_finite": {"policy": "skip", "max": 10}, "shuffle": true, "requirements": [], "image": null, "retries": 3, "priority": 0, "env": {}, "secrets": [], "resume_from": null, "labels": {"team": "vision"}, "timeout_s": null}', 'admin', 1800000002.0209985, 1800000003.0309978, NULL, 'running', 'training', NULL, NULL, 1800000003.0309978, 1800000002.0209985, 0, 'run', 1, 1800000002.0209985, 1, 1, 1, 0, 1, 1, 0, 0, 0, 10, 0, 100, NULL, NULL, NULL, 0, 0, 0, '[]', 1, 0);
INSERT INTO public.log_segments VALUES ('j-2x47dvz4b5', 5, 1, 'w0', 0, 6, 1800000003.0339975);
INSERT INTO public.metrics VALUES ('j-2x47dvz4b5', 6, 'loss', 1, 1, NULL, 1800000003.0349975, 1, 0, false);
INSERT INTO public.metrics VALUES ('j-2x47dvz4b5', 6, 'odd', 1, NULL, 'NaN', 1800000003.0349975, 1, 0, false);
INSERT INTO public.metrics VALUES ('j-2x47dvz4b5', 7, 'loss', 2, 0.5, NULL, 1800000003.0359974, 1, 0, false);
INSERT INTO public.metrics VALUES ('j-2x47dvz4b5', 7, 'odd', 2, NULL, 'NaN', 1800000003.0359974, 1, 0, false);
INSERT INTO public.metrics VALUES ('j-2x47dvz4b5', 8, 'loss', 3, 0.3333333333333333, NULL, 1800000003.0369973, 1, 0, false);
INSERT INTO public.metrics VALUES ('j-2x47dvz4b5', 8, 'odd', 3, NULL, 'NaN', 1800000003.0369973, 1, 0, false);
INSERT INTO public.metrics VALUES ('j-2x47dvz4b5', 9, 'loss', 4, 0.25, NULL, 1800000003.0379972, 1, 0, false);
INSERT INTO public.metrics VALUES ('j-2x47dvz4b5', 9, 'odd', 4, NULL, 'NaN', 1800000003.0379972, 1, 0, false);
INSERT INTO public.metrics VALUES ('j-2x47dvz4b5', 10, 'loss', 5, 0.2, NULL, 1800000003.0389972, 1, 0, false);
INSERT INTO public.metrics VALUES ('j-2x47dvz4b5', 10, 'odd', 5, NULL, 'NaN', 1800000003.0389972, 1, 0, false);
INSERT INTO public.metrics_latest VALUES ('j-2x47dvz4b5', 'loss', 5, 0.2, NULL, 1, 0);
INSERT INTO public.metrics_latest VALUES ('j-2x47dvz4b5', 'odd', 5, NULL, 'NaN', 1, 0);
INSERT INTO public.packages VALUES ('aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa', 'default', 10, 0);
INSERT INTO public.tokens VALUES ('t-9fb8a5b3c23e', 'dddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd', 'ci', 'member', 'default', 0, NULL, NULL);
INSERT INTO public.transitions VALUES ('j-2x47dt017y', 1, 'queued', 'submitted', 1800000000.0019999, 'admin');
INSERT INTO public.transitions VALUES ('j-2x47dt017y', 2, 'starting', 'workers_granted', 1800000001.0049996, 'service');
INSERT INTO public.transitions VALUES ('j-2x47dt017y', 3, 'running', 'training', 1800000001.012999, 'service');
INSERT INTO public.transitions VALUES ('j-2x47dt017y', 4, 'succeeded', 'completed', 1800000001.013999, 'service');
INSERT INTO public.transitions VALUES ('j-2x47dvz4b5', 1, 'queued', 'submitted', 1800000002.0209985, 'admin');
INSERT INTO public.transitions VALUES ('j-2x47dvz4b5', 2, 'starting', 'workers_granted', 1800000003.0229983, 'service');
INSERT INTO public.transitions VALUES ('j-2x47dvz4b5', 3, 'running', 'training', 1800000003.0309978, 'service');
INSERT INTO public.transitions VALUES ('j-2x47dwz0w9', 1, 'queued', 'submitted', 1800000003.040997, 'admin');
INSERT INTO public.workers VALUES ('j-2x47dvz4b5', 1, 'w0', 'g0', 'n1', 7, NULL, 'active', NULL, NULL);
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT attempts_pkey PRIMARY KEY (job, number);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT attempts_submission_id_key UNIQUE (submission_id);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT attempts_token_digest_key UNIQUE (token_digest);
ALTER TABLE ONLY public.checkpoints
    ADD CONSTRAINT checkpoints_pkey PRIMARY KEY (job, step);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (job, "position");
ALTER TABLE ONLY public.facts
    ADD CONSTRAINT facts_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.generations
    ADD CONSTRAINT generations_pkey PRIMARY KEY (job, attempt, generation);
ALTER TABLE ONLY public.idempotency
    ADD CONSTRAINT idempotency_pkey PRIMARY KEY (token, route, key);
ALTER TABLE ONLY public.job_labels
    ADD CONSTRAINT job_labels_pkey PRIMARY KEY (job, key);
ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT jobs_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.log_segments
    ADD CONSTRAINT log_segments_pkey PRIMARY KEY (job, "position");
ALTER TABLE ONLY public.metrics_latest
    ADD CONSTRAINT metrics_latest_pkey PRIMARY KEY (job, name);
ALTER TABLE ONLY public.metrics
    ADD CONSTRAINT metrics_pkey PRIMARY KEY (job, "position", name);
ALTER TABLE ONLY public.metrics_superseded
    ADD CONSTRAINT metrics_superseded_pkey PRIMARY KEY (job, "position");
ALTER TABLE ONLY public.packages
    ADD CONSTRAINT packages_pkey PRIMARY KEY (sha256, project);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT tokens_digest_key UNIQUE (digest);
ALTER TABLE ONLY public.tokens
    ADD CONSTRAINT tokens_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.transitions
    ADD CONSTRAINT transitions_pkey PRIMARY KEY (job, number);
ALTER TABLE ONLY public.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (job, attempt, id);
CREATE INDEX attempts_by_state ON public.attempts USING btree (state);
CREATE INDEX job_labels_by_value ON public.job_labels USING btree (key, value);
CREATE INDEX jobs_by_age ON public.jobs USING btree (created_at, id);
CREATE INDEX jobs_by_status ON public.jobs USING btree (status);
CREATE UNIQUE INDEX log_segments_by_offset ON public.log_segments USING btree (job, attempt, worker, "offset");
CREATE INDEX metrics_by_step ON public.metrics USING btree (job, name, superseded, step);
ALTER TABLE ONLY public.attempts
    ADD CONSTRAINT attempts_job_fkey FOREIGN KEY (job) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.checkpoints
    ADD CONSTRAINT checkpoints_job_fkey FOREIGN KEY (job) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.events
    ADD CONSTRAINT events_job_fkey FOREIGN KEY (job) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.generations
    ADD CONSTRAINT generations_job_fkey FOREIGN KEY (job) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.idempotency
    ADD CONSTRAINT idempotency_job_fkey FOREIGN KEY (job) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.job_labels
    ADD CONSTRAINT job_labels_job_fkey FOREIGN KEY (job) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.log_segments
    ADD CONSTRAINT log_segments_job_fkey FOREIGN KEY (job) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.metrics
    ADD CONSTRAINT metrics_job_fkey FOREIGN KEY (job) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.metrics_latest
    ADD CONSTRAINT metrics_latest_job_fkey FOREIGN KEY (job) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.metrics_superseded
    ADD CONSTRAINT metrics_superseded_job_fkey FOREIGN KEY (job) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.transitions
    ADD CONSTRAINT transitions_job_fkey FOREIGN KEY (job) REFERENCES public.jobs(id) ON DELETE CASCADE;
ALTER TABLE ONLY public.workers
    ADD CONSTRAINT workers_job_fkey FOREIGN KEY (job) REFERENCES public.jobs(id) ON DELETE CASCADE;
