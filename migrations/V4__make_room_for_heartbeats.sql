-- A heartbeat is a heap-only (HOT) update as long as the new version of its row fits on the
-- row's page. A page that is 30 % full has room for two of every row: all of a page's
-- sessions may beat once while the versions before are still in some batch's sight. What is
-- older is pruned by whoever comes next. Holds for pages that are filled from now on.
--
-- Pruning leaves little to vacuum. What heartbeats leave still counts as dead, so the
-- threshold is a share of the table rather than a number of rows, which would keep
-- autovacuum at work without end; and each round is gentle.
ALTER TABLE lock_session SET (
    fillfactor = 30,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_scale_factor = 0.5,
    autovacuum_vacuum_cost_delay = 10
);
