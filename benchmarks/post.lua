-- Sends the bodies of a file in turn, one JSON document a line, and prints one JSON line at the end.
-- wrk ... -s post.lua URL -- BODIES
local bodies, turn = {}, 0

function init(args)
  for line in io.lines(args[1]) do bodies[#bodies + 1] = line end
  math.randomseed(os.time())
  turn = math.random(#bodies)
end

function request()
  turn = turn % #bodies + 1
  return wrk.format("POST", "/embed", {["Content-Type"] = "application/json"}, bodies[turn])
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '{"requests": %d, "seconds": %f, "p50_ms": %f, "p99_ms": %f, "failed": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3,
    latency:percentile(99) / 1e3,
    errors.status + errors.connect + errors.read + errors.write + errors.timeout))
end
