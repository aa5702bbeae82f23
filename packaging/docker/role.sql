-- init grants this role what it needs, but gives it no password.
CREATE ROLE outbox_router LOGIN REPLICATION PASSWORD 'router-to-try';
