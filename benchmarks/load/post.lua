-- Sends the bodies of a file in turn, one JSON document a line, and prints one JSON line at the end.
-- wrk ... -s post.lua URL -- BODIES
local bodies, turn = {}, 0

function init(args)
  for line in io.lines(args[1]) do bodies[#bodies + 1] = line end
end

function request()
  turn = turn % #bodies + 1
  return wrk.format("POST", nil, {["Content-Type"] = "application/json"}, bodies[turn])
end

function done(summary, latency, requests)
  local errors = summary.errors
  local percentiles = {}
  for _, percent in ipairs({50, 90, 99, 99.9}) do
    percentiles[#percentiles + 1] = string.format(
      '"p%s_ms": %f', tostring(percent), latency:percentile(percent) / 1e3)
  end
  io.write(string.format(
    '{"requests": %d, "seconds": %f, "mean_ms": %f, %s, "failed": %d, "unanswered": %d}\n',
    summary.requests, summary.duration / 1e6, latency.mean / 1e3,
    table.concat(percentiles, ", "),
    errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
