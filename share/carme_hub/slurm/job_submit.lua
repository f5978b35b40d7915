-- job_submit.lua: no job gets GPUs without saying which type, or without the licences that they are counted by.
--
-- Slurm keeps a limit on gres/gpu:a100 only against jobs that ask for "gpu:a100:2". A job that asks for "gpu:2" gets
-- the same GPUs past that limit (seen on Slurm 22.05, 24.11, 25.11 and 26.05). This script gives such a request the
-- site's default type, or refuses it where there is none.
--
-- Where the calendar keeps GPUs by licences (CarmeReservations.keep = "licenses"), each job outside of a booking has to
-- name a licence for each GPU. This script names them, whatever the job says of them itself. In a booking it takes them
-- away: the booking has them already, and Slurm would count them twice; and it refuses a job of more GPUs than booked.
--
-- Install: copy it beside slurm.conf, set DEFAULT_GPU_TYPE, set JobSubmitPlugins=lua, restart slurmctld.

-- The type that "gpu:2" stands for, such as "a100"; nil: a request without a type is refused.
local DEFAULT_GPU_TYPE = nil

-- The licence of each GPU type, as in CarmeReservations.licenses, such as { a100 = "gpu_a100" }; {}: none is counted.
local LICENSES = {}

-- Whether scratch folders of sessions are on a tier that burst_buffer.lua looks after: jobs that ask for one by their
-- comment ask for it by a directive then.
local STAGE_TIER = false

-- How the names of the calendar's reservations begin.
local BOOKING = "^carme%-"

local FIELDS = { "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }

local TYPE = "[A-Za-z0-9_.-]+"
local COUNT = "[0-9]+[kKmMgGtTpP]?"

local UNTYPED = "GPUs are asked for by type here: write --gres=gpu:TYPE:COUNT, not \"%s\""
local UNCOUNTED = "GPUs are counted here: write --gres=gpu:TYPE:COUNT, and --nodes where there are several tasks"
local CHANGED = "GPUs are counted here: cancel this job, and submit it as you want it"
local TOO_MANY = "this booking has %d of these GPUs, and the job asks for %d"
local UNCLEAR = "this request for GPUs cannot be read: write --gres=gpu:TYPE:COUNT, not \"%s\""

-- One item of a list: "gpu", "gpu:2", "gres:gpu:2" (Slurm 22.05), "gres/gpu:2" (23.11 and later), "gres/gpu=2".
-- Only what is known passes: Slurm also reads "gpu:+2" and "gpu: 2" as two GPUs of no type.
-- A type may look like a number at first ("1g.10gb"), so a count is digits to the end, perhaps with one unit.
-- Returns the item with a type, or nil and why not.
local function typed(item)
    if not item:lower():find("gpu", 1, true) then
        return item
    end
    local prefix, name, rest = item:match("^(gres[:/])([A-Za-z0-9_]+)(.*)$")
    if prefix == nil then
        prefix, name, rest = "", item:match("^([A-Za-z0-9_]+)(.*)$")
    end
    if name == nil then
        return nil, UNCLEAR
    end
    if name ~= "gpu" then
        -- Something else that has gpu in it, such as shards of a type of that name.
        if name ~= "gres" and name:lower() ~= "gpu" and rest:match("^[:=]?[A-Za-z0-9_.:=-]*$") then
            return item
        end
        return nil, UNCLEAR
    end
    local separator, count = rest:match("^([:=])(" .. COUNT .. ")$")
    if rest == "" or count ~= nil then
        if DEFAULT_GPU_TYPE == nil then
            return nil, UNTYPED
        end
        return prefix .. "gpu:" .. DEFAULT_GPU_TYPE .. (separator or ":") .. (count or "1")
    end
    local kind = rest:match("^:(" .. TYPE .. ")$") or rest:match("^:(" .. TYPE .. ")[:=]" .. COUNT .. "$")
    if kind == nil or not kind:find("[A-Za-z]") then
        return nil, UNCLEAR
    end
    return item
end

local function type_all(job_desc)
    for _, field in ipairs(FIELDS) do
        local value = job_desc[field]
        if value ~= nil and value ~= "" then
            local items = {}
            for item in value:gmatch("[^,]+") do
                local result, why = typed(item)
                if result == nil then
                    slurm.log_user(why, item)
                    return slurm.ERROR
                end
                items[#items + 1] = result
            end
            local changed = table.concat(items, ",")
            if changed ~= value then
                job_desc[field] = changed
            end
        end
    end
    return slurm.SUCCESS
end

-- Slurm says NO_VAL for what the job does not say.
local function set(value)
    return value ~= nil and value > 0 and value < 4294967294 and value or nil
end

-- By what the number of GPUs in a field is multiplied; nil: nobody knows yet.
local function times(field, job_desc)
    local nodes, tasks = set(job_desc.max_nodes) or set(job_desc.min_nodes), set(job_desc.num_tasks)
    if field == "tres_per_job" then
        return 1
    elseif field == "tres_per_task" then
        return tasks or nodes or 1
    elseif field == "tres_per_node" and (nodes ~= nil or (tasks or 1) == 1) then
        return nodes or 1
    end
    return nil
end

local function gpus_of(item)
    local kind, count = item:match("gpu:(" .. TYPE .. ")[:=](%d+)$")
    if kind == nil then
        kind, count = item:match("gpu:(" .. TYPE .. ")$"), 1
    end
    return kind, tonumber(count)
end

-- Returns how many of each licence a job needs, or nil where nobody knows.
local function needed(job_desc)
    local found = {}
    for _, field in ipairs(FIELDS) do
        for item in (job_desc[field] or ""):gmatch("[^,]+") do
            local kind, count = gpus_of(item)
            local name = kind and LICENSES[kind]
            if name ~= nil then
                local factor = times(field, job_desc)
                if factor == nil or count == nil then
                    return nil
                end
                -- One request may be said in two ways: --gpus with --gpus-per-node.
                found[name] = math.max(found[name] or 0, count * factor)
            end
        end
    end
    return found
end

-- "gpu_a100:4,matlab:1" as a table.
local function counts(text)
    local found = {}
    for item in (text or ""):gmatch("[^,;|]+") do
        local name, count = item:match("^([^:=]+)[:=]?(%d*)$")
        if name ~= nil then
            found[name] = tonumber(count) or 1
        end
    end
    return found
end

-- Returns how many of each licence the bookings have that a job names.
local function booked_by(job_desc)
    local found = {}
    for name in (job_desc.reservation or ""):gmatch("[^,]+") do
        local there = name:find(BOOKING) and slurm.reservations[name]
        for license, count in pairs(counts(there and there.licenses or "")) do
            found[license] = (found[license] or 0) + count
        end
    end
    return found
end

local function without_ours(found)
    for _, name in pairs(LICENSES) do
        found[name] = nil
    end
    return found
end

local function count_all(job_desc)
    if next(LICENSES) == nil then
        return slurm.SUCCESS
    end
    local wanted = needed(job_desc)
    if wanted == nil then
        slurm.log_user(UNCOUNTED)
        return slurm.ERROR
    end
    local booked, items = booked_by(job_desc), {}
    for name, count in pairs(without_ours(counts(job_desc.licenses))) do
        items[#items + 1] = string.format("%s:%d", name, count)
    end
    for name, count in pairs(wanted) do
        if booked[name] == nil then
            items[#items + 1] = string.format("%s:%d", name, count)
        elseif count > booked[name] then
            slurm.log_user(TOO_MANY, booked[name], count)
            return slurm.ERROR
        end
    end
    table.sort(items)
    local said = table.concat(items, ",")
    if said ~= (job_desc.licenses or "") then
        job_desc.licenses = said
    end
    return slurm.SUCCESS
end

local function ask_for_tier(job_desc)
    local asked = STAGE_TIER and (" " .. (job_desc.comment or "")):match(" (carme%-stage [%x-]+ %d+)$")
    if asked then
        job_desc.burst_buffer = "#BB_LUA " .. asked
    end
end

function slurm_job_submit(job_desc, part_list, submit_uid)
    ask_for_tier(job_desc)
    if type_all(job_desc) ~= slurm.SUCCESS then
        return slurm.ERROR
    end
    return count_all(job_desc)
end

-- What a job has is not known here, so its count cannot be made anew.
local function counts_change(job_desc)
    for _, field in ipairs(FIELDS) do
        if job_desc[field] ~= nil then
            return true
        end
    end
    return job_desc.licenses ~= nil or job_desc.reservation ~= nil or set(job_desc.min_nodes) or set(job_desc.num_tasks)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    if next(LICENSES) ~= nil and modify_uid ~= 0 and counts_change(job_desc) then
        slurm.log_user(CHANGED)
        return slurm.ERROR
    end
    return type_all(job_desc)
end

return slurm.SUCCESS
