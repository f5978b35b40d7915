-- job_submit.lua: no job gets GPUs without saying which type.
--
-- Slurm keeps a limit on gres/gpu:a100 only against jobs that ask for "gpu:a100:2". A job that asks for "gpu:2" gets
-- the same GPUs past that limit (seen on Slurm 22.05, 24.11, 25.11 and 26.05). This script gives such a request the
-- site's default type, or refuses it where there is none.
--
-- Install: copy it beside slurm.conf, set DEFAULT_GPU_TYPE, set JobSubmitPlugins=lua, restart slurmctld.

-- The type that "gpu:2" stands for, such as "a100"; nil: a request without a type is refused.
local DEFAULT_GPU_TYPE = nil

local FIELDS = { "tres_per_node", "tres_per_job", "tres_per_task", "tres_per_socket" }

local TYPE = "[A-Za-z0-9_.-]+"
local COUNT = "[0-9]+[kKmMgGtTpP]?"

local UNTYPED = "GPUs are asked for by type here: write --gres=gpu:TYPE:COUNT, not \"%s\""
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

function slurm_job_submit(job_desc, part_list, submit_uid)
    return type_all(job_desc)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return type_all(job_desc)
end

return slurm.SUCCESS
