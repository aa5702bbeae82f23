-- What the router keeps for itself. The outbox table and emit() carry configured names, so they are made by init
-- from templates instead; whatever the router needs besides comes as a further file beside this one.
COMMENT ON SCHEMA outbox_router IS 'Objects of outbox-router: made and upgraded by outbox-router init';
