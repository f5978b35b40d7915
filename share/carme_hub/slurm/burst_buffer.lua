-- burst_buffer.lua: scratch folders on a tier that nodes share, made before a job starts and emptied after its end.
--
-- Slurm calls these functions on the controller's host, as SlurmUser. They call the program that Prolog and Epilog call
-- on nodes with disks of their own, carme-stage-out, with the same list, the same promise and the same sweep. The nodes
-- are free as soon as a job has ended; its results leave the tier in the job's state STAGE_OUT.
--
-- A job asks by its comment, "carme-stage SESSION GIB", which job_submit.lua beside this file makes a directive
-- (STAGE_TIER = true). Install: copy it beside slurm.conf, and say there
--     BurstBufferType=burst_buffer/lua
-- and in burst_buffer.conf
--     Directive=BB_LUA
--     StageOutTimeout=3600          # longer than epilog_seconds
-- For a SlurmUser that is not root, sudo lets it run that program and no other (docs/howto/stage-data.md).
--
-- Slurm 22.05 gives most functions fewer arguments than later releases, so only those are used that all have.

local PROGRAM = "/opt/carme-hub/node/carme-stage-out"
-- Before the program: "" where SlurmUser is root.
local SUDO = "sudo -n "

local UUID = string.rep("%x", 8) .. string.rep("%-" .. string.rep("%x", 4), 3) .. "%-" .. string.rep("%x", 12)
local DIRECTIVE = "^#BB_LUA carme%-stage (" .. UUID .. ") ([1-9]%d?%d?%d?%d?%d?)%s*$"

-- The session and the GiB that a job's script asks for, nil for nothing; the first directive counts.
local function asked(job_script)
    local file = io.open(job_script or "", "r")
    if file == nil then
        return nil
    end
    for line in file:lines() do
        local session, gib = line:match(DIRECTIVE)
        if session ~= nil then
            file:close()
            return session:lower(), gib
        end
    end
    file:close()
    return nil
end

-- Runs the program for a job. Lua has no other way than a shell: all that varies is digits, or was matched above.
local function run(verb, job_id, uid, session, gib)
    local own = string.format("SLURM_JOB_ID=%d SLURM_JOB_COMMENT='carme-stage %s %s'", job_id, session, gib)
    if uid ~= nil then
        own = string.format("%s SLURM_JOB_UID=%d", own, uid)
    end
    local done = os.execute(string.format("%s %s%s %s", own, SUDO, PROGRAM, verb))
    return done == 0 or done == true
end

function slurm_bb_job_process(job_script)
    local file = io.open(job_script, "r")
    for line in file and file:lines() or function() end do
        if line:match("^#BB_LUA") and not line:match(DIRECTIVE) then
            file:close()
            return slurm.ERROR, "only \"#BB_LUA carme-stage SESSION GIB\" is known here"
        end
    end
    if file then
        file:close()
    end
    return slurm.SUCCESS
end

function slurm_bb_pools()
    return slurm.SUCCESS, '{"pools": []}'
end

function slurm_bb_setup(job_id, uid, gid, pool, bb_size, job_script)
    local session, gib = asked(job_script)
    if session ~= nil and not run("prolog", job_id, uid, session, gib) then
        return slurm.ERROR, "the scratch folder cannot be made: see the controller's log"
    end
    return slurm.SUCCESS
end

function slurm_bb_data_in(job_id, job_script)
    return slurm.SUCCESS -- the job copies its data itself, with its user's rights, and says how far it is
end

function slurm_bb_test_data_in(job_id, job_script)
    return slurm.SUCCESS, "NOTBUSY"
end

function slurm_bb_real_size(job_id)
    return slurm.SUCCESS, "0"
end

function slurm_bb_paths(job_id, job_script, path_file)
    return slurm.SUCCESS
end

function slurm_bb_pre_run(job_id, job_script)
    return slurm.SUCCESS
end

function slurm_bb_post_run(job_id, job_script)
    return slurm.SUCCESS
end

-- Results that do not reach their targets within epilog_seconds are kept and tried again by the sweep, so this succeeds:
-- a job whose stage-out fails would stay in STAGE_OUT until somebody cancels it.
function slurm_bb_data_out(job_id, job_script)
    local session, gib = asked(job_script)
    if session ~= nil then
        run("epilog", job_id, nil, session, gib) -- whose it is stands in the program's list
    end
    return slurm.SUCCESS
end

function slurm_bb_test_data_out(job_id, job_script)
    return slurm.SUCCESS, "NOTBUSY"
end

-- Also after `scancel --hurry`, which skips the stage-out. Nothing is thrown away: the sweep brings it out.
function slurm_bb_job_teardown(job_id, job_script, hurry)
    return slurm.SUCCESS
end

function slurm_bb_get_status(...)
    return slurm.SUCCESS, ""
end

return slurm.SUCCESS
